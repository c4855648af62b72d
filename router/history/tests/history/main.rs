//! The database against a model of it, and what it does with files that it cannot use.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use trunkline_api::history::{Change, Conversation, History, Mode, Selection, StoreError};
use trunkline_history::{Database, OpenError};

const MAX_BYTES: u64 = 1500;

/// What the database should have of an owner: title, details and turns by conversation.
type Model = BTreeMap<String, (String, String, BTreeMap<String, String>)>;

#[derive(Debug, Clone)]
enum Step {
    Change { owner: usize, id: usize, mode: Mode, change: Change },
    Remove { owner: usize, id: usize },
    Reopen,
}

const OWNERS: [&str; 2] = ["", "alice"];
const IDS: [&str; 3] = ["a", "b", "c"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let text = |longest: usize| proptest::string::string_regex(&format!("[a-zä]{{0,{longest}}}")).unwrap();
    let body = move || text(200).prop_map(|text| format!("{{\"content\":\"{text}\"}}"));
    let turns = prop::collection::vec(("[xyz]", prop::option::of(body())), 0..3);
    let details = prop::option::of(text(9).prop_map(|text| format!("{{\"system\":\"{text}\"}}")));
    let mode = prop_oneof![Just(Mode::Replace), Just(Mode::Update)];
    let change = (0..2usize, 0..3usize, mode, prop::option::of(text(9)), details, turns).prop_map(
        |(owner, id, mode, title, details, turns)| Step::Change {
            owner,
            id,
            mode,
            change: Change { title, details, turns },
        },
    );
    let remove = (0..2usize, 0..3usize).prop_map(|(owner, id)| Step::Remove { owner, id });
    prop::collection::vec(prop_oneof![8 => change, 2 => remove, 1 => Just(Step::Reopen)], 1..30)
}

fn apply(model: &mut Model, id: &str, mode: Mode, change: &Change) -> bool {
    if mode == Mode::Replace {
        model.insert(id.to_owned(), (String::new(), "{}".to_owned(), BTreeMap::new()));
    }
    let Some((title, details, turns)) = model.get_mut(id) else { return false };
    if let Some(new) = &change.title {
        title.clone_from(new);
    }
    if let Some(new) = &change.details {
        details.clone_from(new);
    }
    for (turn, body) in &change.turns {
        match body {
            Some(body) => turns.insert(turn.clone(), body.clone()),
            None => turns.remove(turn),
        };
    }
    true
}

/// Returns the bytes that an owner's conversations have at least.
fn num_bytes(model: &Model) -> u64 {
    let of_turns = |turns: &BTreeMap<String, String>| turns.values().map(String::len).sum::<usize>();
    model.values().map(|(title, details, turns)| (title.len() + details.len() + of_turns(turns)) as u64).sum()
}

fn check(database: &Database, owner: &str, model: &Model) {
    let listed = database.list(owner, &Selection { limit: 9, ..Selection::default() }).unwrap().listed;
    let mut ids: Vec<_> = listed.iter().map(|listed| listed.id.clone()).collect();
    ids.sort();
    assert_eq!(ids, model.keys().cloned().collect::<Vec<_>>());
    assert!(listed.is_sorted_by(|one, next| one.updated >= next.updated));
    let counted: u64 = listed.iter().map(|listed| listed.num_bytes).sum();
    assert!((num_bytes(model)..=MAX_BYTES).contains(&counted), "{counted}");
    for listed in listed {
        let Conversation { listed: found, details, turns } = database.get(owner, &listed.id).unwrap();
        let (title, expected_details, expected) = &model[&listed.id];
        assert_eq!((&found, &found.title, &details), (&listed, title, expected_details));
        assert_eq!(turns.into_iter().collect::<BTreeMap<_, _>>(), *expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(25))]
    #[test]
    fn a_history_has_what_was_written(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let mut database = Database::open(folder.path(), MAX_BYTES).unwrap();
        let mut models: [Model; 2] = Default::default();
        for step in steps {
            let versions = OWNERS.map(|owner| database.version(owner).unwrap());
            let mut has_changed = [false; 2];
            match step {
                Step::Change { owner, id, mode, change } => {
                    let mut after = models[owner].clone();
                    let exists = apply(&mut after, IDS[id], mode, &change);
                    match database.change(OWNERS[owner], IDS[id], mode, &change) {
                        Ok(listed) => {
                            prop_assert!(exists);
                            prop_assert_eq!(listed, database.get(OWNERS[owner], IDS[id]).unwrap().listed);
                            models[owner] = after;
                            has_changed[owner] = true;
                        }
                        Err(StoreError::Unknown) => prop_assert!(!exists),
                        Err(StoreError::Full { limit }) => {
                            prop_assert_eq!(limit, MAX_BYTES);
                            // Of these bodies, so many bytes are rows and ids.
                            prop_assert!(num_bytes(&after) + 3 * 200 + 9 * 200 > MAX_BYTES);
                        }
                        Err(error) => prop_assert!(false, "{error:?}"),
                    }
                }
                Step::Remove { owner, id } => {
                    let existed = models[owner].remove(IDS[id]).is_some();
                    prop_assert_eq!(database.remove(OWNERS[owner], IDS[id]).is_ok(), existed);
                    has_changed[owner] = existed;
                }
                Step::Reopen => {
                    drop(database);
                    database = Database::open(folder.path(), MAX_BYTES).unwrap();
                }
            }
            for (owner, name) in OWNERS.iter().enumerate() {
                check(&database, name, &models[owner]);
                prop_assert_eq!(database.version(name).unwrap() > versions[owner], has_changed[owner]);
            }
        }
    }
}

fn write(database: &Database, id: &str, title: &str, content: &str) {
    let change = Change {
        title: Some(title.to_owned()),
        turns: vec![("t".to_owned(), Some(format!("{{\"content\":{content}}}")))],
        ..Change::default()
    };
    database.change("", id, Mode::Replace, &change).unwrap();
}

#[test]
fn a_search_finds_words_in_any_case_in_one_text_of_the_owner() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::open(folder.path(), 1 << 20).unwrap();
    write(&database, "title", "Über Züge", "\"\"");
    write(&database, "turn", "", "\"Ein Zug fuhr über die Brücke\"");
    write(&database, "both", "Züge", "\"über\"");
    write(&database, "other", "content", "[1]");
    let find = |owner: &str, words: &[&str]| {
        let words = words.iter().map(|&word| word.to_owned()).collect();
        let found = database.list(owner, &Selection { words, after: None, limit: 9 }).unwrap().listed;
        let mut ids: Vec<_> = found.into_iter().map(|listed| listed.id).collect();
        ids.sort();
        ids
    };
    assert_eq!(find("", &["ÜBER"]), ["both", "title", "turn"]);
    assert_eq!(find("", &["über", "züge"]), ["title"]);
    assert_eq!(find("", &["content"]), ["other"]);
    assert!(find("alice", &["über"]).is_empty());
}

#[test]
fn a_long_list_has_parts() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::open(folder.path(), 1 << 20).unwrap();
    (0..5).for_each(|number| write(&database, &format!("c{number}"), "", "\"\""));
    let (mut after, mut ids) = (None, Vec::new());
    loop {
        let page = database.list("", &Selection { words: Vec::new(), after, limit: 2 }).unwrap();
        ids.extend(page.listed.iter().map(|listed| listed.id.clone()));
        after = page.listed.last().map(|listed| listed.id.clone());
        if !page.has_more {
            break;
        }
    }
    ids.sort();
    assert_eq!(ids, ["c0", "c1", "c2", "c3", "c4"]);
    let unknown = Selection { words: Vec::new(), after: Some("no".to_owned()), limit: 2 };
    assert!(matches!(database.list("", &unknown), Err(StoreError::Unknown)));
}

#[test]
fn two_databases_write_to_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let old = Database::open(folder.path(), 1 << 20).unwrap();
    let new = Database::open(folder.path(), 1 << 20).unwrap();
    write(&old, "old", "", "\"\"");
    write(&new, "new", "", "\"\"");
    write(&old, "old", "again", "\"\"");
    assert_eq!(new.get("", "old").unwrap().listed.title, "again");
    assert_eq!(old.version("").unwrap(), 3);
}

#[test]
fn only_the_user_may_read_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("history");
    let database = Database::open(&inner, 1 << 20).unwrap();
    write(&database, "a", "", "\"\"");
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&inner), 0o700);
    let files: Vec<_> = inner.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.len() > 1, "{files:?}");
    files.iter().for_each(|path| assert_eq!(mode(path), 0o600, "{}", path.display()));
}

#[test]
fn files_that_are_no_history_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.sqlite3");
    std::fs::write(&path, "no database, but long enough to be one, ".repeat(50)).unwrap();
    let error = Database::open(folder.path(), 1 << 20).unwrap_err();
    assert!(
        matches!(error, OpenError::File(..)) && error.to_string().contains("move the file away"),
        "{error}"
    );
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("no database"));
    std::fs::remove_file(&path).unwrap();

    drop(Database::open(folder.path(), 1 << 20).unwrap());
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 7).unwrap();
    assert!(matches!(Database::open(folder.path(), 1 << 20).unwrap_err(), OpenError::TooNew(_, 7)));
}
