//! Finds conversations by the words of their titles and turns.

use std::collections::HashSet;

use rusqlite::Transaction;
use trunkline_api::history::StoreError;

use super::failed;

/// Returns the ids of the owner's conversations whose title, or one of whose turns, contains all words in any case.
/// Without words it returns `None`. All of the owner's turns are read, of which the limit bounds the size.
pub fn find(
    transaction: &Transaction<'_>,
    owner: &str,
    words: &[String],
) -> Result<Option<HashSet<String>>, StoreError> {
    if words.is_empty() {
        return Ok(None);
    }
    let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
    let mut statement = transaction
        .prepare_cached(
            "SELECT id, title FROM conversations WHERE owner = ?1
             UNION ALL SELECT conversation, json_extract(body, '$.content') FROM turns WHERE owner = ?1",
        )
        .map_err(failed)?;
    let mut rows = statement.query([owner]).map_err(failed)?;
    let mut found = HashSet::new();
    while let Some(row) = rows.next().map_err(failed)? {
        // The content of a turn is what the client wrote, which need not be a text.
        let text = row.get_ref(1).map_err(failed)?.as_str().unwrap_or_default().to_lowercase();
        if words.iter().all(|word| text.contains(word)) {
            found.insert(row.get(0).map_err(failed)?);
        }
    }
    Ok(Some(found))
}
