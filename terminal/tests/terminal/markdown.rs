use proptest::prelude::*;
use trunkline_terminal::markdown::Renderer;
use unicode_width::UnicodeWidthStr;

fn render(pieces: &[&str], width: usize, colours: bool) -> String {
    let mut renderer = Renderer::new(width, colours);
    let mut out: String = pieces.iter().map(|piece| renderer.push(piece)).collect();
    out += &renderer.finish();
    out
}

/// Removes the sequences that colour text.
fn bare(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').unwrap().1)
}

#[test]
fn a_page_with_everything() {
    let text = "# Trunk *lines*\n\nA **trunk line** joins two exchanges; `dial 9` first, and 2 * 3 * 4 is \\*not\\* bold.\n\n\
        - one that is long enough to go on in a second row of the item\n  - nested **bold words** here\n1. first\n10) tenth\n\n\
        > quoted words that are long enough to need another row\n\n---\n\n```rust\nfn main() {\n    let snake_case = 2 * 3; // a line that is left as it is, however long it may be\n}\n```\n\n\
        | name | value |\n|---|--:|\n| **a** | 1 |\n| longer | `2` |\n\nsnake_case stays, _this_ does not.";
    insta::assert_snapshot!(render(&[text], 40, false));
}

#[test]
fn styles_are_those_of_the_marks() {
    let cases = [
        ("**a** b", "\x1b[1ma\x1b[0m b\n"),
        ("*a* _b_", "\x1b[3ma\x1b[0m \x1b[3mb\x1b[0m\n"),
        ("***a***", "\x1b[1;3ma\x1b[0m\n"),
        ("`**a**`", "\x1b[36m**a**\x1b[0m\n"),
        ("``a`b``", "\x1b[36ma`b\x1b[0m\n"),
        ("## A", "\x1b[1;34mA\x1b[0m\n"),
        ("a**b**c", "a\x1b[1mb\x1b[0mc\n"),
    ];
    for (text, wanted) in cases {
        assert_eq!(render(&[text], 40, true), wanted, "{text}");
    }
}

#[test]
fn marks_that_mean_nothing_stay() {
    for text in ["2 * 3 * 4", "a_b_c", "#tag", "-x", "**", "1.5 is a number", "2024) is long", "a ** b", "|"]
    {
        assert_eq!(render(&[text], 40, false).trim_end(), text);
    }
}

#[test]
fn what_commands_a_terminal_is_left_out() {
    let hostile = "a\x1b]0;title\x07b\x1b[2Jc\r\u{9b}31md\n```\n\x1b[31mcode\n```\n| \x1b[5m |\n";
    for colours in [false, true] {
        let text = bare(&render(&[hostile], 40, colours));
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(text.contains("code"));
    }
}

#[test]
fn code_can_be_copied() {
    let code = "    indented\n\n\tx = 'a very long line that no terminal of twenty columns could show in one row'\n``\n";
    let text = render(&[&format!("```\n{code}```\nafter")], 20, false);
    assert!(text.contains(code) && text.ends_with("after\n"), "{text}");
    let open = render(&[&format!("````md\n```\n{code}")], 20, false);
    assert!(open.contains(code) && open.contains("\n```\n"), "{open}");
}

#[test]
fn words_come_as_soon_as_they_end() {
    let mut renderer = Renderer::new(40, false);
    assert_eq!(renderer.push("Hel"), "");
    assert_eq!(renderer.push("lo wor"), "Hello");
    assert_eq!(renderer.push("ld. "), " world.");
    assert_eq!(renderer.push("```"), "", "inside a line this opens no block");
}

/// Pieces of Markdown, whole and broken.
fn markdown() -> impl Strategy<Value = String> {
    let pieces = "(word|averyveryverylongwordwithoutanend|你好|é|\\*\\*|\\*|_|`|```|~~~|````rust| |  |\n|\n\n|# |- |1\\. |> |\\||---|\\\\|\t){0,60}";
    prop::string::string_regex(pieces).unwrap()
}

proptest! {
    #[test]
    fn no_cut_changes_the_text(text in markdown(), colours in any::<bool>(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        let whole = render(&[&text], 24, colours);
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let single: Vec<&str> = characters.iter().map(String::as_str).collect();
        prop_assert_eq!(&render(&single, 24, colours), &whole);
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        places.retain(|place| text.is_char_boundary(*place));
        places.extend([0, text.len()]);
        places.sort_unstable();
        let pieces: Vec<&str> = places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        prop_assert_eq!(&render(&pieces, 24, colours), &whole);
    }

    #[test]
    fn no_row_is_wider_than_the_terminal(text in markdown(), width in 20usize..60) {
        // Lines of code are left to the terminal.
        let text = text.replace("```", "").replace("~~~", "");
        for colours in [false, true] {
            for row in bare(&render(&[&text], width, colours)).lines() {
                prop_assert!(row.width() <= width, "{row:?}");
            }
        }
    }

    #[test]
    fn no_letter_is_lost(text in "([a-z]{1,30}|[ \n]|你|\\*\\*|- ){0,60}") {
        let letters = |text: &str| text.chars().filter(|c| c.is_alphabetic()).collect::<String>();
        prop_assert_eq!(letters(&render(&[&text], 20, false)), letters(&text));
    }

    #[test]
    fn colours_change_no_text(text in markdown()) {
        prop_assert_eq!(bare(&render(&[&text], 30, true)), render(&[&text], 30, false));
    }
}
