use serde::Deserialize;
use trunkline_api::lists::{Listed, TextOrList};

#[derive(Debug, PartialEq, Deserialize)]
struct Digit(u8);

impl Listed for Digit {
    const LIMIT: usize = 2;
    const NAMES: &'static str = "digits";
}

#[test]
fn text_or_a_short_list_is_accepted_and_other_types_are_refused() {
    let read = |json| serde_json::from_str::<TextOrList<Digit>>(json);
    assert_eq!(read("\"a\\n\"").ok(), Some(TextOrList::Text("a\n".into())));
    assert_eq!(read("[1, 2]").ok(), Some(TextOrList::List(vec![Digit(1), Digit(2)])));
    let problem = |json| read(json).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(problem("[1, 2, 3]").starts_with("has more than 2 digits"));
    assert!(problem("1").starts_with("invalid type: integer `1`, expected a string or a list of digits"));
    assert!(problem("[\"1\"]").starts_with("invalid type: string \"1\", expected u8"));
}
