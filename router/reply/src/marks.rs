//! The marks in a reply, and the sections that they separate.

/// The section of a reply that a part of the text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// A reasoning mark, with the white space before an opening mark or after a closing one; a mark around the content;
    /// or the header or the end of a message in the harmony format.
    Mark,
    /// The text between the marks.
    Reasoning,
    /// The text after reasoning, or all of a reply without reasoning. In the harmony format, text may precede
    /// reasoning, and a call has its header.
    Content,
}

/// Finds the first of several marks in a text.
pub(crate) fn first_mark<'a>(text: &str, marks: &[&'a str]) -> Option<(usize, &'a str)> {
    marks.iter().filter_map(|mark| Some((text.find(mark)?, *mark))).min()
}

/// Returns the length of the longest suffix of `text` that is a proper prefix of one of the marks.
pub(crate) fn held_len(text: &str, marks: &[&str]) -> usize {
    marks.iter().map(|mark| mark_prefix_len(text, mark)).max().unwrap_or(0)
}

/// Returns the length of the longest suffix of `text` that is a proper prefix of `mark`.
pub(crate) fn mark_prefix_len(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len() - 1);
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&mark.as_bytes()[..len])).unwrap_or(0)
}
