use trunkline_launcher::cache::live::{Tree, shown};
use trunkline_launcher::cache::server::Node;

#[test]
fn what_clients_sent_tells_a_terminal_nothing() {
    assert_eq!(shown("a\u{1b}[2J\u{7}\u{202e}b\n\tc\r"), "a\\u{1b}[2J\\u{7}\\u{202e}b\n\tc\\u{d}");
}

fn node(number: u64, parent: Option<u64>, age_ms: u64) -> Node {
    let value = serde_json::json!({
        "id": format!("{number}-{number:032x}"), "parent": parent, "first_token": 0, "tokens": 64, "blocks": 1, "bytes": 1024,
        "stored": 0, "hits": 0, "age_ms": age_ms,
    });
    serde_json::from_value(value).unwrap()
}

#[test]
fn nodes_hang_under_their_parents_and_lost_ones_at_the_root() {
    let nodes = [
        node(3, Some(1), 9),
        node(1, None, 5),
        node(2, Some(1), 4),
        node(7, Some(99), 1),
        node(8, Some(8), 2),
    ];
    let tree = Tree::new(&nodes);
    assert_eq!(tree.children(None), [3, 4, 1]);
    assert_eq!(tree.children(Some(1)), [2, 0]);
    let path: Vec<u64> = tree.path(&nodes[0]).iter().filter_map(|node| node.number()).collect();
    assert_eq!(path, [1, 3]);
    let mut out = String::new();
    tree.draw(&mut out);
    let forks: Vec<&str> = out.lines().map(|line| line.split_once(' ').unwrap().0).collect();
    assert_eq!(forks, ["├─", "├─", "└─", "", ""]);
    assert!(
        out.lines()
            .nth(4)
            .unwrap()
            .starts_with("   └─ 3-00000000000000000000000000000003  64 tokens  1 block, 1.0 KiB  0 hits")
    );
}
