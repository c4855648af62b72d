use trunkline_engine::kv_events::vllm::encode;
use trunkline_scheduler::{
    AdapterHash, BlockKey, KvEvent, LaneId, Owner, Salt, SaltAdapter, StoredEvent, Tier,
};

fn key(byte: u8) -> BlockKey {
    BlockKey::from_bytes([byte; 16])
}

fn stored(byte: u8, parent: Option<u8>, token_ids: &[u32], tier: Tier) -> KvEvent {
    KvEvent::BlockStored(StoredEvent {
        key: key(byte),
        parent: parent.map(key),
        depth: None,
        token_ids: token_ids.into(),
        owner: Owner::Salt(Salt::default()),
        tier,
    })
}

fn removed(byte: u8, tier: Tier) -> KvEvent {
    KvEvent::BlockRemoved { key: key(byte), tier, owner: Owner::Unknown }
}

fn text(text: &str) -> Vec<u8> {
    [&[0xa0 | text.len() as u8], text.as_bytes()].concat()
}

fn number(byte: u8) -> Vec<u8> {
    [&[0xcf], [byte; 8].as_slice()].concat()
}

/// Encodes `events` and returns the bytes between timestamp and rank.
fn between(events: &[KvEvent]) -> Vec<u8> {
    let bytes = encode(1.5, LaneId(3), events);
    let begin = [&[0x93, 0xcb], 1.5_f64.to_be_bytes().as_slice()].concat();
    assert_eq!(bytes[..begin.len()], begin);
    assert_eq!(bytes.last(), Some(&3));
    bytes[begin.len()..bytes.len() - 1].to_vec()
}

#[test]
fn a_chain_is_one_event() {
    let chain =
        [stored(0x81, None, &[1, 2], Tier::Device), stored(0x82, Some(0x81), &[3, 300], Tier::Device)];
    let expected = [
        vec![0x91, 0x98],
        text("BlockStored"),
        vec![0x92],
        number(0x81),
        number(0x82),
        vec![0xc0, 0x94, 1, 2, 3, 0xcd, 1, 44, 2, 0xc0],
        text("GPU"),
        vec![0xc0],
    ];
    assert_eq!(between(&chain), expected.concat());
}

#[test]
fn the_first_block_of_a_path_carries_its_salt() {
    let salted = |byte, parent| {
        let KvEvent::BlockStored(event) = stored(byte, parent, &[1], Tier::Device) else { unreachable!() };
        // The tenant is not published: no client's request could name it.
        let owner = Owner::Salt(Salt::of_tenant("alice").with_cache_salt("pepper"));
        KvEvent::BlockStored(StoredEvent { owner, ..event })
    };
    let fields = |length, hashes: &[u8], parent: Vec<u8>| {
        let hashes =
            [vec![0x90 | hashes.len() as u8], hashes.iter().flat_map(|&hash| number(hash)).collect()];
        let tokens = vec![1; hashes[0][0] as usize & 0xf];
        let tokens = [vec![0x90 | tokens.len() as u8], tokens, vec![1, 0xc0]].concat();
        [vec![length], text("BlockStored"), hashes.concat(), parent, tokens, text("GPU"), vec![0xc0]].concat()
    };
    let begin = [salted(0x81, None), salted(0x82, Some(0x81))];
    let extra_keys = [vec![0x92, 0x91], text("pepper"), vec![0xc0]].concat();
    let expected = [vec![0x91], fields(0x99, &[0x81, 0x82], vec![0xc0]), extra_keys];
    assert_eq!(between(&begin), expected.concat());
    let later = [salted(0x82, Some(0x81))];
    assert_eq!(between(&later), [vec![0x91], fields(0x98, &[0x82], number(0x81))].concat());
}

#[test]
fn blocks_of_an_adapter_carry_its_number_and_name() {
    let KvEvent::BlockStored(event) = stored(0x81, None, &[1], Tier::Device) else { unreachable!() };
    let adapter = SaltAdapter { hash: AdapterHash([5; 32]), name: "sql".into() };
    let salt = Salt { adapter: Some(adapter), ..Salt::default() };
    let events = [KvEvent::BlockStored(StoredEvent { owner: Owner::Salt(salt), ..event })];
    let id = vec![0xce, 5, 5, 5, 5];
    let begin = [vec![0x91, 0x98], text("BlockStored"), vec![0x91], number(0x81), vec![0xc0, 0x91, 1, 1]];
    let expected = [begin.concat(), id, text("GPU"), text("sql")];
    assert_eq!(between(&events), expected.concat());
}

#[test]
fn unrelated_events_are_not_merged() {
    let events = [
        stored(0x81, Some(0x80), &[1], Tier::Device),
        stored(0x83, Some(0x82), &[1], Tier::Device),
        stored(0x84, Some(0x83), &[], Tier::Disk),
        removed(0x81, Tier::Device),
        removed(0x82, Tier::Device),
        removed(0x83, Tier::Object),
        KvEvent::AllBlocksCleared,
    ];
    let one = |hash, parent, tokens: &[u8], size, medium| {
        [
            vec![0x98],
            text("BlockStored"),
            vec![0x91],
            number(hash),
            number(parent),
            tokens.to_vec(),
            vec![size, 0xc0],
            text(medium),
            vec![0xc0],
        ]
        .concat()
    };
    let expected = [
        vec![0x96],
        one(0x81, 0x80, &[0x91, 1], 1, "GPU"),
        one(0x83, 0x82, &[0x91, 1], 1, "GPU"),
        one(0x84, 0x83, &[0x90], 0, "DISK"),
        [vec![0x93], text("BlockRemoved"), vec![0x92], number(0x81), number(0x82), text("GPU")].concat(),
        [vec![0x93], text("BlockRemoved"), vec![0x91], number(0x83), text("OBJECT_STORE")].concat(),
        [vec![0x91], text("AllBlocksCleared")].concat(),
    ];
    assert_eq!(between(&events), expected.concat());
}
