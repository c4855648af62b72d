use trunkline_base::watermark::{DEFAULT_KEY, KeyError, read_key};

#[test]
fn keys_are_64_bit_integers() {
    for (text, key) in [
        ("15485863\n", Some(15_485_863)),
        (" 0xffffffffffffffff ", Some(u64::MAX)),
        ("0x0", Some(0)),
        ("18446744073709551616", None),
        ("0x10000000000000000", None),
        ("-1", None),
        ("0x+1", None),
        ("0x", None),
        ("", None),
        ("ff", None),
        ("1 2", None),
    ] {
        assert_eq!(read_key(None, Some(text)).ok(), key, "{text:?}");
    }
}

#[test]
fn the_key_has_one_source_and_errors_do_not_show_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("watermark.key");
    let unreadable = read_key(Some(&path), None).unwrap_err().to_string();
    assert!(unreadable.starts_with("`--watermark-key-file`: cannot read"), "{unreadable}");
    std::fs::write(&path, "0x2a\n").unwrap();
    assert_eq!(read_key(Some(&path), None).unwrap(), 42);
    assert_eq!(read_key(None, Some("43")).unwrap(), 43);
    assert_eq!(read_key(None, None).unwrap(), DEFAULT_KEY);
    assert!(matches!(read_key(Some(&path), Some("43")), Err(KeyError::Both)));
    for bad in [b"secret words".to_vec(), vec![b'1'; 65], vec![0xff, 0xfe]] {
        std::fs::write(&path, bad).unwrap();
        let error = read_key(Some(&path), None).unwrap_err().to_string();
        assert!(
            error.contains("does not contain a key; hint: use an integer") && !error.contains("secret"),
            "{error}"
        );
    }
    let error = read_key(None, Some("secret words")).unwrap_err().to_string();
    assert!(
        error.starts_with("`TRUNKLINE_WATERMARK_KEY` is not a key") && !error.contains("secret"),
        "{error}"
    );
}
