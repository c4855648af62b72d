//! The log of events is bounded.

use trunkline_contract::BlockKey;
use trunkline_kv::events::EventLog;
use trunkline_kv::{KvEvent, MAX_LOGGED_EVENTS, Owner, Salt, Tier};

fn event(number: u32) -> KvEvent {
    let key = BlockKey::default().extend(&[number]);
    KvEvent::BlockRemoved { key, tier: Tier::Device, owner: Owner::Unknown }
}

#[test]
fn a_log_without_a_listener_makes_no_event() {
    let mut log = EventLog::default();
    log.note(|| panic!("nobody listens"));
    log.set_on(true);
    log.note(|| event(1));
    log.set_on(true);
    assert_eq!(log.take(), (vec![event(1)], false));
    log.note(|| event(2));
    log.set_on(false);
    log.set_on(true);
    assert_eq!(log.take(), (vec![], false));
}

#[test]
fn a_full_log_tells_that_events_were_lost() {
    let mut log = EventLog::default();
    log.set_on(true);
    for number in 0..=MAX_LOGGED_EVENTS as u32 + 1 {
        log.note(|| event(number));
    }
    assert_eq!(log.take(), (vec![], true));
    log.note(|| event(1));
    assert_eq!(log.take(), (vec![event(1)], false));
}

#[test]
fn an_owner_is_as_precise_as_its_tier() {
    let salt = Salt::of_tenant("a").with_cache_salt("b");
    let owners = [Owner::Salt(salt.clone()), Owner::Tenant("a".into()), Owner::Unknown];
    assert_eq!(owners.each_ref().map(Owner::tenant), [Some("a"), Some("a"), None]);
    assert_eq!(owners.each_ref().map(Owner::root_key), [Some(salt.root_key()), None, None]);
}
