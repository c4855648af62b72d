//! What a reader may expect, one rule a test.

use trunkline_residency::{
    Action, Event, KeepAlive, ModelId, ModelSettings, Residency, Settings, State, TooLarge,
};

const A: ModelId = ModelId(0);
const B: ModelId = ModelId(1);
const C: ModelId = ModelId(2);
const MIN_STAY_MS: u64 = 1000;
const MIN_IDLE_MS: u64 = 50;

/// Ten bytes of memory, and models of these sizes.
fn residency(sizes: &[u64]) -> Residency {
    let mut residency = Residency::new(Settings {
        limit_bytes: 10,
        min_stay_ms: MIN_STAY_MS,
        min_idle_ms: MIN_IDLE_MS,
        backoff_ms: 100,
        max_backoff_ms: 350,
    });
    for (number, bytes) in sizes.iter().enumerate() {
        let settings =
            ModelSettings { bytes: *bytes, is_pinned: false, priority: 0, keep_alive: KeepAlive::Forever };
        residency.handle(Event::Added { model: ModelId(number as u32), settings }, 0);
    }
    residency
}

fn load(residency: &mut Residency, model: ModelId, now_ms: u64) {
    assert_eq!(residency.handle(Event::Wanted { model }, now_ms), [Action::Load(model)]);
    assert_eq!(residency.handle(Event::Loaded { model, bytes: None }, now_ms), []);
}

/// A request comes and goes.
fn use_once(residency: &mut Residency, model: ModelId, now_ms: u64) -> Vec<Action> {
    assert!(residency.may_begin(model));
    assert_eq!(residency.handle(Event::Opened { model }, now_ms), []);
    residency.handle(Event::Closed { model }, now_ms)
}

fn failed(residency: &mut Residency, model: ModelId, now_ms: u64) {
    assert_eq!(residency.handle(Event::Failed { model, why: "no file".into() }, now_ms), []);
}

#[test]
fn models_load_one_at_a_time_in_the_order_of_the_requests() {
    let mut residency = residency(&[3, 3, 3]);
    assert_eq!(residency.handle(Event::Wanted { model: B }, 0), [Action::Load(B)]);
    for model in [C, A, C] {
        assert_eq!(residency.handle(Event::Wanted { model }, 1), []);
    }
    assert_eq!(residency.state(B), Some(State::Loading { since_ms: 0 }));
    assert_eq!(residency.state(C), Some(State::Queued { place: 0 }));
    assert_eq!(residency.state(A), Some(State::Queued { place: 1 }));
    assert_eq!(residency.handle(Event::Loaded { model: B, bytes: None }, 5), [Action::Load(C)]);
    assert_eq!(residency.state(A), Some(State::Queued { place: 0 }));
    assert_eq!(residency.used_bytes(), 6);
}

#[test]
fn the_least_recently_used_idle_model_leaves_and_its_bytes_count_until_it_has() {
    let mut residency = residency(&[5, 5, 5]);
    load(&mut residency, A, 0);
    load(&mut residency, B, 0);
    use_once(&mut residency, B, 1);
    use_once(&mut residency, A, 2);
    assert_eq!(residency.handle(Event::Wanted { model: C }, 500), [Action::Unload(B)]);
    assert_eq!(residency.used_bytes(), 10);
    assert_eq!(residency.handle(Event::Woke, 600), []);
    assert_eq!(residency.handle(Event::Unloaded { model: B }, 600), [Action::Load(C)]);
}

#[test]
fn a_model_that_need_not_leave_stays() {
    // A goes first, but B must go too, and is enough.
    let mut residency = residency(&[2, 8, 8]);
    load(&mut residency, A, 0);
    load(&mut residency, B, 1);
    assert_eq!(residency.handle(Event::Wanted { model: C }, 5000), [Action::Unload(B)]);
}

#[test]
fn a_model_that_nobody_waits_for_any_more_is_not_loaded() {
    let mut residency = residency(&[5, 5, 5]);
    for model in [A, B, C] {
        residency.handle(Event::Wanted { model }, 0);
    }
    residency.handle(Event::Left { model: B }, 1);
    assert_eq!(residency.state(B), Some(State::Unloaded));
    assert_eq!(residency.handle(Event::Loaded { model: A, bytes: None }, 2), [Action::Load(C)]);
    // An administrator need not wait for what was asked for.
    residency.handle(Event::LoadAsked { model: B }, 3);
    residency.handle(Event::Left { model: B }, 4);
    assert_eq!(residency.state(B), Some(State::Queued { place: 0 }));
}

#[test]
fn a_lower_priority_leaves_first() {
    let mut residency = residency(&[5, 5, 5]);
    let settings = ModelSettings { bytes: 5, is_pinned: false, priority: -1, keep_alive: KeepAlive::Forever };
    residency.handle(Event::Added { model: B, settings }, 0);
    load(&mut residency, A, 0);
    load(&mut residency, B, 10);
    assert_eq!(residency.handle(Event::Wanted { model: C }, 5000), [Action::Unload(B)]);
}

#[test]
fn a_busy_model_drains_after_its_stay_and_its_new_requests_wait_for_their_turn() {
    let mut residency = residency(&[6, 6]);
    load(&mut residency, A, 0);
    residency.handle(Event::Opened { model: A }, 0);
    assert_eq!(residency.handle(Event::Wanted { model: B }, 10), []);
    assert!(residency.may_begin(A));
    assert_eq!(residency.next_wakeup(), Some(MIN_STAY_MS));
    assert_eq!(residency.handle(Event::Woke, MIN_STAY_MS), []);
    assert!(!residency.may_begin(A));
    residency.handle(Event::Wanted { model: A }, 1001);
    assert_eq!(residency.state(A), Some(State::Draining { num_open: 1, place: Some(1) }));
    assert_eq!(residency.handle(Event::Closed { model: A }, 1002), [Action::Unload(A)]);
    assert_eq!(residency.handle(Event::Unloaded { model: A }, 1003), [Action::Load(B)]);
    assert_eq!(residency.state(A), Some(State::Queued { place: 0 }));
}

#[test]
fn a_drain_that_is_no_longer_needed_is_taken_back() {
    let mut residency = residency(&[5, 5, 5]);
    load(&mut residency, A, 0);
    load(&mut residency, B, 0);
    residency.handle(Event::Opened { model: A }, 0);
    residency.handle(Event::Opened { model: B }, 1);
    residency.handle(Event::Wanted { model: C }, 5000);
    residency.handle(Event::Wanted { model: A }, 5001);
    assert_eq!(residency.state(A), Some(State::Draining { num_open: 1, place: Some(1) }));
    assert_eq!(residency.handle(Event::Closed { model: B }, 5002), [Action::Unload(B)]);
    assert!(residency.may_begin(A));
    assert_eq!(residency.state(C), Some(State::Queued { place: 0 }));
}

#[test]
fn a_pause_between_two_requests_ends_no_stay() {
    let mut residency = residency(&[6, 6]);
    load(&mut residency, A, 0);
    residency.handle(Event::Wanted { model: B }, 1);
    assert_eq!(use_once(&mut residency, A, 100), []);
    assert_eq!(use_once(&mut residency, A, 149), []);
    assert_eq!(residency.next_wakeup(), Some(149 + MIN_IDLE_MS));
    assert_eq!(residency.handle(Event::Woke, 149 + MIN_IDLE_MS), [Action::Unload(A)]);
}

#[test]
fn an_idle_model_is_unloaded_when_its_keep_alive_ends() {
    let mut residency = residency(&[5]);
    load(&mut residency, A, 0);
    residency.handle(Event::Opened { model: A }, 5000);
    residency.handle(Event::KeepAlive { model: A, keep_alive: KeepAlive::For(300) }, 5000);
    assert_eq!(residency.next_wakeup(), None);
    residency.handle(Event::Closed { model: A }, 6000);
    assert_eq!(residency.next_wakeup(), Some(6300));
    // A request that comes in at the very moment wins.
    assert_eq!(residency.handle(Event::Opened { model: A }, 6300), []);
    residency.handle(Event::Closed { model: A }, 6400);
    assert_eq!(residency.handle(Event::Woke, 6700), [Action::Unload(A)]);
    // The next stay has the keep-alive of the settings.
    residency.handle(Event::Unloaded { model: A }, 6800);
    load(&mut residency, A, 7000);
    use_once(&mut residency, A, 7000);
    assert_eq!(residency.next_wakeup(), None);
}

#[test]
fn a_keep_alive_of_zero_leaves_the_waiting_request_its_time() {
    let mut residency = residency(&[5]);
    residency.handle(Event::KeepAlive { model: A, keep_alive: KeepAlive::For(0) }, 0);
    load(&mut residency, A, 0);
    assert_eq!(residency.handle(Event::Woke, 500), []);
    assert_eq!(use_once(&mut residency, A, 600), [Action::Unload(A)]);
}

#[test]
fn an_admins_unload_waits_for_the_streams_to_end() {
    let mut residency = residency(&[5]);
    load(&mut residency, A, 0);
    residency.handle(Event::Opened { model: A }, 0);
    assert_eq!(residency.handle(Event::UnloadAsked { model: A }, 1), []);
    assert_eq!(residency.state(A), Some(State::Draining { num_open: 1, place: None }));
    residency.handle(Event::Wanted { model: A }, 2);
    assert_eq!(residency.handle(Event::Closed { model: A }, 3), [Action::Unload(A)]);
    assert_eq!(residency.state(A), Some(State::Unloading { place: Some(0) }));
    assert_eq!(residency.handle(Event::Unloaded { model: A }, 4), [Action::Load(A)]);
}

#[test]
fn a_model_that_drains_for_long_holds_up_none_behind_it() {
    let mut residency = residency(&[5, 5]);
    load(&mut residency, A, 0);
    residency.handle(Event::Opened { model: A }, 0);
    residency.handle(Event::UnloadAsked { model: A }, 1);
    residency.handle(Event::Wanted { model: A }, 2);
    assert_eq!(residency.handle(Event::Wanted { model: B }, 3), [Action::Load(B)]);
    assert_eq!(residency.state(A), Some(State::Draining { num_open: 1, place: Some(0) }));
}

#[test]
fn failures_back_off_and_an_admin_need_not_wait() {
    let mut residency = residency(&[5, 5]);
    let mut now_ms = 0;
    for backoff_ms in [100, 200, 350, 350] {
        assert_eq!(residency.handle(Event::Wanted { model: A }, now_ms), [Action::Load(A)]);
        residency.handle(Event::Wanted { model: B }, now_ms);
        residency.handle(Event::Failed { model: A, why: "no file".into() }, now_ms);
        residency.handle(Event::Failed { model: B, why: "no file".into() }, now_ms);
        let state = State::Failed { why: "no file".into(), retry_at_ms: now_ms + backoff_ms };
        assert_eq!(residency.state(A), Some(state.clone()));
        assert_eq!(residency.handle(Event::Wanted { model: A }, now_ms + backoff_ms - 1), []);
        assert_eq!(residency.state(A), Some(state));
        now_ms += backoff_ms;
    }
    assert_eq!(residency.handle(Event::Wanted { model: A }, now_ms), [Action::Load(A)]);
    failed(&mut residency, A, now_ms);
    assert_eq!(residency.handle(Event::LoadAsked { model: A }, now_ms), [Action::Load(A)]);
}

#[test]
fn a_model_whose_files_cannot_be_read_has_no_turn_until_its_back_off_ends() {
    let mut residency = residency(&[10, 10]);
    load(&mut residency, A, 0);
    assert_eq!(residency.handle(Event::Wanted { model: B }, 1), []);
    let unreadable = Event::Unreadable { model: B, why: "no file".into() };
    let state = State::Failed { why: "no file".into(), retry_at_ms: 102 };
    // The second one is of a request that came at the same time.
    for now_ms in [2, 3] {
        assert_eq!(residency.handle(unreadable.clone(), now_ms), []);
        assert_eq!(residency.state(B), Some(state.clone()));
    }
    assert_eq!(residency.handle(Event::Wanted { model: B }, 101), []);
    assert_eq!(residency.handle(Event::LoadAsked { model: B }, 101), []);
    assert_eq!(residency.handle(unreadable.clone(), 101), [], "an admin's load has failed, too");
    assert_eq!(residency.state(B), Some(State::Failed { why: "no file".into(), retry_at_ms: 301 }));
    // A model that is in memory needs no file.
    assert_eq!(residency.handle(Event::Unreadable { model: A, why: "no file".into() }, 102), []);
    assert!(residency.may_begin(A));
}

#[test]
fn a_crash_frees_the_bytes() {
    let mut residency = residency(&[10, 10]);
    load(&mut residency, A, 0);
    residency.handle(Event::Opened { model: A }, 0);
    residency.handle(Event::Wanted { model: B }, 1);
    let crash = Event::Failed { model: A, why: "signal 9".into() };
    assert_eq!(residency.handle(crash, 2), [Action::Load(B)]);
    assert_eq!(residency.state(A), Some(State::Failed { why: "signal 9".into(), retry_at_ms: 102 }));
}

#[test]
fn a_model_that_can_never_fit_is_refused_with_the_numbers() {
    let mut residency = residency(&[11, 6, 6]);
    let refused = TooLarge { bytes: 11, limit_bytes: 10, pinned_bytes: 0 };
    assert_eq!(residency.state(A), Some(State::TooLarge(refused)));
    load(&mut residency, B, 0);
    residency.handle(Event::Wanted { model: C }, 0);
    assert_eq!(residency.state(C), Some(State::Queued { place: 0 }));
    residency.handle(Event::Pinned { model: B, is_pinned: true }, 0);
    let refused = TooLarge { bytes: 6, limit_bytes: 10, pinned_bytes: 6 };
    assert_eq!(residency.state(C), Some(State::TooLarge(refused)));
    assert_eq!(residency.handle(Event::Wanted { model: C }, 9000), []);
    assert_eq!(
        refused.to_string(),
        "the model needs 6 bytes, but all models may use 10, and pinned ones hold 6 of them"
    );
}

#[test]
fn a_model_that_is_larger_than_estimated_makes_others_leave() {
    let mut residency = residency(&[4, 4, 2]);
    load(&mut residency, A, 0);
    use_once(&mut residency, A, 0);
    residency.handle(Event::Wanted { model: B }, 1);
    assert_eq!(residency.handle(Event::Wanted { model: C }, 1), []);
    let loaded = Event::Loaded { model: B, bytes: Some(7) };
    assert_eq!(residency.handle(loaded, 2), [Action::Unload(A)]);
    assert_eq!(residency.used_bytes(), 11);
    assert_eq!(residency.handle(Event::Unloaded { model: A }, 3), [Action::Load(C)]);
}

#[test]
fn two_models_with_endless_traffic_take_turns_of_at_least_the_shortest_stay() {
    let mut residency = residency(&[6, 6]);
    let mut waiting = Vec::new();
    let mut loads = Vec::new();
    let mut num_open = [0; 2];
    for now_ms in 0..20_000 {
        let mut events: Vec<Event> = std::mem::take(&mut waiting);
        events.push(Event::Woke);
        for model in [A, B] {
            let open = &mut num_open[model.0 as usize];
            if residency.may_begin(model) {
                // The next stream begins before the last one ends.
                events.push(Event::Opened { model });
                *open += 1;
            } else {
                events.push(Event::Wanted { model });
            }
            if *open > 0 && (*open > 1 || !residency.may_begin(model)) {
                events.push(Event::Closed { model });
                *open -= 1;
            }
        }
        for action in events.into_iter().flat_map(|event| residency.handle(event, now_ms)).collect::<Vec<_>>()
        {
            match action {
                Action::Load(model) => {
                    loads.push((now_ms, model));
                    waiting.push(Event::Loaded { model, bytes: None });
                }
                Action::Unload(model) => waiting.push(Event::Unloaded { model }),
            }
        }
    }
    assert!(
        loads.windows(2).all(|pair| pair[0].1 != pair[1].1 && pair[1].0 - pair[0].0 > MIN_STAY_MS),
        "{loads:?}"
    );
    assert!(loads.len() > 18, "{loads:?}");
}

#[test]
fn a_removed_model_ends_its_requests_and_is_forgotten() {
    let mut residency = residency(&[5, 5]);
    load(&mut residency, A, 0);
    assert_eq!(residency.handle(Event::Opened { model: A }, 1), []);
    for model in [A, B] {
        assert_eq!(residency.handle(Event::Removed { model }, 2), []);
    }
    assert_eq!((residency.state(A), residency.state(B)), (Some(State::Removed), None));
    assert!(!residency.may_begin(A));
    for event in [Event::Wanted { model: A }, Event::LoadAsked { model: A }, Event::Wanted { model: B }] {
        assert_eq!(residency.handle(event, 3), []);
    }
    assert_eq!(residency.handle(Event::Closed { model: A }, 4), [Action::Unload(A)]);
    assert_eq!(residency.used_bytes(), 5);
    assert_eq!(residency.handle(Event::Unloaded { model: A }, 5), []);
    assert_eq!((residency.state(A), residency.used_bytes()), (None, 0));
}
