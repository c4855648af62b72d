use trunkline_launcher::signals::ignored_mask;

#[test]
fn mask_is_read_from_the_status_file() {
    assert_eq!(ignored_mask("Name:\tx\nSigBlk:\t0\nSigIgn:\t0000000000001001\n"), Some(0x1001));
    assert_eq!(ignored_mask("Name:\tx\n"), None);
}
