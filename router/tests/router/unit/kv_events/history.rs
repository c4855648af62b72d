use trunkline_engine::kv_events::history::History;
use trunkline_scheduler::{KvEvent, LaneId};

fn numbers(history: &History, from: u64) -> Option<Vec<u64>> {
    let events = history.read(from, 10)?;
    Some(events.iter().map(|event| event.number).collect())
}

#[test]
fn the_latest_events_are_kept() {
    let mut history = History::new("e".into(), 3);
    assert_eq!(numbers(&history, 0), Some(vec![]));
    assert_eq!(history.append(1.0, LaneId::FIRST, vec![KvEvent::AllBlocksCleared; 2]), 2);
    assert_eq!(numbers(&history, 0), Some(vec![0, 1]));
    assert_eq!(history.append(2.0, LaneId::FIRST, vec![KvEvent::AllBlocksCleared; 3]), 5);
    assert_eq!(numbers(&history, 1), None);
    assert_eq!(numbers(&history, 2), Some(vec![2, 3, 4]));
    assert_eq!(numbers(&history, 5), Some(vec![]));
    assert_eq!(history.read(2, 1).unwrap().len(), 1);
}

#[test]
fn a_listener_resumes_or_learns_that_events_are_lost() {
    let mut history = History::new("e".into(), 3);
    history.append(1.0, LaneId::FIRST, vec![KvEvent::AllBlocksCleared; 5]);
    let begin = |last_id| {
        let resume = history.resume(last_id);
        (resume.next, resume.is_lost)
    };
    assert_eq!(begin(None), (5, false));
    assert_eq!(begin(Some("e-4")), (5, false));
    assert_eq!(begin(Some("e-1")), (2, false));
    let unknown =
        ["e-0", "e-5", "f-4", "4", "", "e-", "e--1", "e-18446744073709551615", "e-99999999999999999999"];
    for last_id in unknown {
        assert_eq!(begin(Some(last_id)), (5, true), "{last_id}");
    }
}
