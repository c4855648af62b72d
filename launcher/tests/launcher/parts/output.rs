use trunkline_launcher::output::{MAX_LOG_LINE_BYTES, Tail, copy_lines};

#[test]
fn lines_are_whole_bounded_and_ended() {
    let long = vec![b'x'; MAX_LOG_LINE_BYTES as usize + 1];
    let input = [b"a\n\nb\xff\n".as_slice(), &long].concat();
    let mut lines = Vec::new();
    copy_lines(input.as_slice(), |line| lines.push(line.to_vec()));
    assert_eq!(lines[..3], [b"a\n".to_vec(), b"\n".to_vec(), b"b\xff\n".to_vec()]);
    assert_eq!(lines[3].len() as u64, MAX_LOG_LINE_BYTES + 1);
    assert_eq!(lines[4], b"x\n");
}

#[test]
fn only_the_last_line_is_held_back() {
    let mut tail = Tail::default();
    tail.push(b"error: not the last\n");
    assert!(tail.verdict.is_some());
    tail.push(b"2026 INFO shard: going on\n");
    assert!(tail.verdict.is_none());
    tail.push(b"error: the last\n");
    assert_eq!(tail.verdict.as_deref(), Some(b"error: the last\n".as_slice()));
    assert_eq!(tail.last_line.as_deref(), Some("error: the last\n"));
}
