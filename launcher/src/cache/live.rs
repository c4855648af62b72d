//! The commands on a running server's tree of nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::render::{age, number, plural, size};
use super::server::{Node, Server, Totals};
use super::{CacheError, Id};

/// Most lines shown of a node's text.
const MAX_TEXT_LINES: usize = 20;
const MS_PER_S: u64 = 1_000;

/// The nodes by parent. Children become roots if their parent is on no page because the tree changed in between.
#[derive(Debug)]
pub struct Tree<'a> {
    nodes: &'a [Node],
    /// Indices of children by the number of their parent; the roots are under `None`.
    children: BTreeMap<Option<u64>, Vec<usize>>,
}

impl<'a> Tree<'a> {
    pub fn new(nodes: &'a [Node]) -> Self {
        let known: BTreeSet<u64> = nodes.iter().filter_map(Node::number).collect();
        let mut children: BTreeMap<Option<u64>, Vec<usize>> = BTreeMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let parent =
                node.parent.filter(|parent| known.contains(parent) && Some(*parent) != node.number());
            children.entry(parent).or_default().push(index);
        }
        // Most recently used first.
        for siblings in children.values_mut() {
            siblings.sort_by_key(|&index| (nodes[index].age_ms, nodes[index].first_token));
        }
        Self { nodes, children }
    }

    /// Returns the indices of the children of node number `of`, or of the roots.
    pub fn children(&self, of: Option<u64>) -> &[usize] {
        self.children.get(&of).map_or(&[], Vec::as_slice)
    }

    /// Writes the lines of the tree. It does not recurse, since a conversation may fork at every turn.
    pub fn draw(&self, out: &mut String) {
        let roots = self.children(None);
        let mut open: Vec<(usize, String, bool)> = Vec::new();
        let push = |open: &mut Vec<_>, of: &[usize], indent: &str| {
            for (place, &index) in of.iter().enumerate().rev() {
                open.push((index, indent.to_owned(), place + 1 == of.len()));
            }
        };
        push(&mut open, roots, "");
        while let Some((index, indent, is_last)) = open.pop() {
            let node = &self.nodes[index];
            let (fork, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let _ = writeln!(out, "{indent}{fork}{}", line(node));
            push(&mut open, self.children(node.number()), &format!("{indent}{below}"));
        }
    }

    /// Returns the nodes from the root to `last`.
    pub fn path(&self, last: &'a Node) -> Vec<&'a Node> {
        let by_number: BTreeMap<u64, &Node> =
            self.nodes.iter().filter_map(|node| Some((node.number()?, node))).collect();
        let mut path = vec![last];
        while let Some(parent) = path.last().and_then(|node| by_number.get(&node.parent?))
            && path.len() <= self.nodes.len()
        {
            path.push(parent);
        }
        path.reverse();
        path
    }
}

/// `7-9a23c0ffee1200000000000000000002  6,016 tokens  94 blocks, 70.2 MiB  disk 94  3 hits  2 min ago  pinned for 1 h`
fn line(node: &Node) -> String {
    let mut line = format!(
        "{}  {}  {}, {}",
        shown(&node.id),
        plural(node.tokens, "token"),
        plural(node.blocks, "block"),
        size(node.bytes)
    );
    if node.stored > 0 {
        let _ = write!(line, "  disk {}", number(node.stored));
    }
    let _ = write!(line, "  {}  {}", plural(node.hits, "hit"), age(0, node.age_ms / MS_PER_S));
    let where_pinned = match (node.pinned > 0, node.disk_pinned > 0) {
        (true, true) => Some("pinned"),
        (true, false) => Some("pinned on the device"),
        (false, true) => Some("pinned on disk"),
        (false, false) => None,
    };
    if let Some(pinned) = where_pinned {
        let _ = write!(line, "  {pinned}");
        if let Some(left) = node.pin_ends_in_ms {
            let _ = write!(line, " for {}", age(0, left / MS_PER_S).trim_end_matches(" ago"));
        }
    }
    if !node.prompt_cache_keys.is_empty() {
        let _ = write!(line, "  {}", shown(&node.prompt_cache_keys.join(", ")));
    }
    line
}

/// Escapes control characters in clients' text, which could otherwise control the terminal.
pub fn shown(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '\n' | '\t' => out.push(character),
            // This includes characters that change the direction of writing.
            _ if character.is_control()
                || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                out.extend(character.escape_unicode());
            }
            _ => out.push(character),
        }
    }
    out
}

fn head(url: &str, totals: &Totals) -> String {
    let used = totals.device.held + totals.device.cached;
    let of = |used: u64, all: u64| format!("{} of {} blocks", number(used), number(all));
    let mut out = format!(
        "{url}  device: {}, {} of {}",
        of(used, totals.device.blocks),
        size(totals.device.used_bytes),
        size(totals.device.bytes)
    );
    for (name, store) in [("host", &totals.host), ("disk", &totals.disk)] {
        if let Some(store) = store {
            let _ = write!(out, "; {name}: {}", of(store.blocks, store.slots));
        }
    }
    let _ = writeln!(out, "; blocks of {} tokens", totals.block_size);
    for tenant in &totals.tenants {
        let Some(name) = &tenant.tenant else { continue };
        let _ = write!(
            out,
            "  {}: device {} of {}, {} pinned",
            shown(name),
            number(tenant.device_blocks),
            number(tenant.device_share_blocks),
            number(tenant.device_pinned)
        );
        if let (Some(blocks), Some(pinned)) = (tenant.disk_blocks, tenant.disk_pinned) {
            let _ = write!(out, "; disk {}, {} pinned", number(blocks), number(pinned));
        }
        out.push('\n');
    }
    out
}

pub(crate) fn list(server: &Server) -> Result<String, CacheError> {
    let totals = server.totals()?;
    let nodes = server.nodes()?;
    let mut out = head(server.url(), &totals);
    Tree::new(&nodes).draw(&mut out);
    Ok(out)
}

/// Returns one path, node by node, with its text if the server reveals it.
pub(crate) fn show(server: &Server, id: &str) -> Result<String, CacheError> {
    let nodes = server.nodes()?;
    let last = find(&nodes, id)?;
    let mut out = String::new();
    for node in Tree::new(&nodes).path(last) {
        let end = node.first_token + node.tokens;
        let _ = writeln!(out, "{}", line(node));
        let _ = writeln!(out, "   tokens {} to {}", number(node.first_token), number(end.saturating_sub(1)));
        let Some(text) = server.node_text(node)? else { continue };
        let text = shown(&text);
        let mut lines = text.lines();
        lines.by_ref().take(MAX_TEXT_LINES).for_each(|line| out += &format!("   │ {line}\n"));
        let num_left = lines.count();
        if num_left > 0 {
            let _ = writeln!(out, "   … {} more lines", number(num_left as u64));
        }
    }
    Ok(out)
}

/// What happens to pinned blocks when others are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pins {
    Keep,
    End,
}

/// Removes a node and everything that continues it.
pub(crate) fn remove(server: &Server, id: &str, pins: Pins) -> Result<String, CacheError> {
    let nodes = server.nodes()?;
    remove_nodes(server, &Tree::new(&nodes), vec![find(&nodes, id)?], pins)
}

/// Removes everything that the key may see.
pub(crate) fn remove_all(server: &Server, pins: Pins) -> Result<String, CacheError> {
    let nodes = server.nodes()?;
    let tree = Tree::new(&nodes);
    let roots = tree.children(None).iter().map(|&root| &nodes[root]).collect();
    remove_nodes(server, &tree, roots, pins)
}

/// Removes nodes with everything that continues them, and says what stays.
fn remove_nodes(server: &Server, tree: &Tree, roots: Vec<&Node>, pins: Pins) -> Result<String, CacheError> {
    let totals = server.totals()?;
    let mut num_blocks = 0;
    for root in &roots {
        if pins == Pins::End {
            server.unpin(root)?;
        }
        num_blocks += server.remove(root)?;
    }
    let tiers = [
        (totals.disk.is_some(), "on disk"),
        (totals.host.is_some(), "in host memory"),
        (totals.object_store.is_some(), "in the object store"),
    ];
    let tiers: Vec<&str> =
        tiers.into_iter().filter_map(|(is_there, name)| is_there.then_some(name)).collect();
    let mut out = format!("removed {} from the device", plural(num_blocks, "block"));
    if !tiers.is_empty() {
        let _ = write!(out, " and any copies {}", tiers.join(" and "));
    }
    out.push('\n');
    let (mut num_pinned, mut num_used) = (0, 0);
    let mut open = roots;
    // No server makes this walk longer than its list.
    for _ in 0..tree.nodes.len() {
        let Some(node) = open.pop() else { break };
        num_pinned += node.pinned;
        // Pins hold blocks, too.
        num_used += node.held.saturating_sub(node.pinned);
        open.extend(tree.children(node.number()).iter().map(|&child| &tree.nodes[child]));
    }
    if num_pinned > 0 && pins == Pins::Keep {
        let (blocks, verb) =
            (plural(num_pinned, "pinned block"), if num_pinned == 1 { "stays" } else { "stay" });
        let _ = writeln!(out, "{blocks} {verb}; hint: `--pinned` ends their pins and removes them, too");
    }
    if num_used > 0 {
        let (verb, them) = if num_used == 1 { ("stays", "it") } else { ("stay", "them") };
        let _ = writeln!(out, "{} {verb} because a request uses {them}", plural(num_used, "block"));
    }
    Ok(out)
}

/// Pins the path that ends with a node.
pub(crate) fn pin(server: &Server, id: &str, ttl_s: u64) -> Result<String, CacheError> {
    let nodes = server.nodes()?;
    let pinned = server.pin(find(&nodes, id)?, ttl_s)?;
    let mut out = format!("pinned {} tokens on the device", number(pinned.pinned_tokens));
    if let Some(on_disk) = pinned.disk_pinned_tokens {
        let _ = write!(out, ", {} on disk", number(on_disk));
    }
    let _ = writeln!(out, " for {} s", number(ttl_s));
    Ok(out)
}

/// Removes the pins of a node and of everything that continues it.
pub(crate) fn unpin(server: &Server, id: &str) -> Result<String, CacheError> {
    let nodes = server.nodes()?;
    let num_blocks = server.unpin(find(&nodes, id)?)?;
    Ok(format!("unpinned {} on the device\n", plural(num_blocks, "block")))
}

/// Finds the node whose id is `id`, or whose key starts with its digits.
fn find<'a>(nodes: &'a [Node], id: &str) -> Result<&'a Node, CacheError> {
    let Id { number, digits } = Id::parse(id)?;
    let is_meant = |node: &&Node| {
        (number.is_none() || number == node.number()) && node.key().to_ascii_lowercase().starts_with(&digits)
    };
    let found: Vec<&Node> = nodes.iter().filter(is_meant).collect();
    match found[..] {
        [] => Err(CacheError::UnknownId { id: id.to_owned() }),
        [node] => Ok(node),
        _ => Err(CacheError::AmbiguousId { id: id.to_owned(), count: found.len() }),
    }
}
