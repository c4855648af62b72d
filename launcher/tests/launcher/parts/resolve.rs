use trunkline_launcher::error::LauncherError;
use trunkline_launcher::resolve::{ResolvedModel, parse};

#[test]
fn last_line_is_the_answer() {
    let output =
        b"a library says hello\n{\"path\": \"/m.gguf\", \"model_id\": \"a/b\", \"revision\": null}\n\n";
    let model = parse(output).unwrap();
    assert_eq!(
        model,
        ResolvedModel { path: "/m.gguf".into(), model_id: "a/b".into(), ..ResolvedModel::default() }
    );
}

#[test]
fn anything_else_is_refused() {
    for output in [&b""[..], b"\n", b"{}", b"\xff", b"{\"path\": \"m.gguf\", \"model_id\": \"a\"}", b"[1]"] {
        let error = parse(output).unwrap_err();
        assert!(matches!(error, LauncherError::ResolverOutput { .. }), "{error}");
    }
}
