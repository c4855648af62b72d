use std::process::Command;

use trunkline_launcher::report::output_of;

#[test]
fn output_is_told_from_failure() {
    // Another test must not run the fakes while they are being written.
    crate::support::fakes();
    assert_eq!(output_of(Command::new("sh").args(["-c", "echo yes; echo no >&2"])).unwrap(), b"yes\n");
    let error =
        output_of(Command::new("sh").args(["-c", "echo first >&2; echo last >&2; exit 3"])).unwrap_err();
    assert_eq!(error, "last");
    let error = output_of(&mut Command::new("/nonexistent/program")).unwrap_err();
    assert!(error.starts_with("cannot start `/nonexistent/program`: "), "{error}");
}
