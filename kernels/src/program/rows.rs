//! The rows that operations take: of embeddings, and of outputs.

/// The choice of an embedding's row for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowIndex {
    /// The row of its id.
    Token,
    /// The row of its position, behind a number of rows that mean something else.
    Position { offset: usize },
    /// The row of the text that it belongs to, 0 or 1. With fewer rows, the last one.
    Text,
}

/// The positions whose outputs make the vector of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PooledRows {
    First,
    Last,
    All,
}
