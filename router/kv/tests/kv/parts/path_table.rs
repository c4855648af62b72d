//! The hash table of paths.

use std::collections::BTreeMap;
use trunkline_kv::NodeId;
use trunkline_kv::evict::path_table::{PathTable, SPREAD};

#[test]
fn it_agrees_with_a_map_though_paths_collide() {
    let (mut table, mut map) = (PathTable::new(), BTreeMap::new());
    // Many paths have the same few of 16 homes, so that chains wrap around and are cut at every position.
    let inverse = (0..6).fold(1_u64, |x, _| x.wrapping_mul(2_u64.wrapping_sub(SPREAD.wrapping_mul(x))));
    assert_eq!(SPREAD.wrapping_mul(inverse), 1);
    let mut random = 9_u64;
    for round in 0..200_000_u32 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let (home, number) = ((random >> 33) % 3, (random >> 40) % 40);
        let path = ((((15 + home) % 16) << 60) | (number << 20)).wrapping_mul(inverse);
        if random >> 63 == 0 {
            table.remove(path);
            map.remove(&path);
        } else if let std::collections::btree_map::Entry::Vacant(place) = map.entry(path) {
            table.insert(path, *place.insert(NodeId(round)));
        }
        assert_eq!((table.get(path), table.len()), (map.get(&path).copied(), map.len()));
        if round % 1_000 == 0 {
            assert!(map.iter().all(|(&path, &node)| table.get(path) == Some(node)));
        }
    }
}
