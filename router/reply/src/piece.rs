//! The output of the parser.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text for the reader.
    Text(String),
    /// Text that the model wrote between reasoning marks.
    Reasoning(String),
    CallBegin {
        /// Name of the tool, one of those that the parser was created with.
        name: String,
    },
    /// More arguments of the current call, as JSON text.
    Arguments(String),
    CallEnd,
}

/// Appends `text` as a piece, unless it is empty.
pub(crate) fn push_nonempty(text: &str, piece: fn(String) -> Piece, out: &mut Vec<Piece>) {
    if !text.is_empty() {
        out.push(piece(text.to_owned()));
    }
}
