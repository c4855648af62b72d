//! String literals as Python reads them.

use trunkline_reply::python_string::{StringScanner, begins, parse};

#[test]
fn literals_have_the_values_of_python() {
    for (literal, wanted) in [
        (r#""a" b"#, "a"),
        ("''", ""),
        (r#""""a "b" ""c\n"""]"#, "a \"b\" \"\"c\n"),
        ("'''it's\n'''", "it's\n"),
        (r"r'\d\'\n'", r"\d\'\n"),
        (r#"u"é""#, "é"),
        (r"'\ud83d\ude00 \ud83d \ude00\ud83d'", "😀 \u{fffd} \u{fffd}\u{fffd}"),
        (r"'\101\0\x41\u00e9\U0001f600\7\1019'", "A\0Aé😀\x07A9"),
        (r"'\'\\\d\a\b\f\v\t\r'", "'\\\\d\x07\x08\x0c\x0b\t\r"),
        ("'a\\\nb'", "ab"),
    ] {
        assert!(begins(literal), "{literal}");
        assert_eq!(parse(literal).unwrap().0, wanted, "{literal}");
    }
    assert_eq!(parse("'a' 'b'"), Some(("a".to_owned(), " 'b'")));
    for literal in ["'a", "'''a''", r"'\xg1'", r"'\x+1'", r"'\U00110000'", "a", "", "'\\"] {
        assert_eq!(parse(literal), None, "{literal}");
    }
    for text in ["b'a'", "f'a'", "ra'a'", "5", "rr'a'", "None"] {
        assert!(!begins(text), "{text}");
    }
}

#[test]
fn scanners_tell_strings_from_the_text_around_them() {
    for (text, wanted) in [
        ("[a='x]', '']", "   ssss  ss "),
        ("[\"\"\"a\"b\"\"c\\\"\"\"\"]", " ssssssssssssss "),
        ("('\\'' \"it's\")", " ssss ssssss "),
        ("['' '''''']", " ss ssssss "),
    ] {
        let mut scanner = StringScanner::default();
        let taken: String =
            text.bytes().map(|byte| if scanner.is_in_string(byte) { 's' } else { ' ' }).collect();
        assert_eq!(taken, wanted, "{text}");
    }
}
