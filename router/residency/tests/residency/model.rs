//! Random histories against a model of the world: processes that start and end at any later time, fail and crash, and
//! requests that come and go.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use trunkline_residency::{Action, Event, KeepAlive, ModelId, ModelSettings, Residency, Settings, State};

const LIMIT_BYTES: u64 = 20;
const MAX_BACKOFF_MS: u64 = 400;
const NUM_MODELS: u32 = 5;
/// A request that waits looks again within 20 ms.
const MIN_STAYS_MS: std::ops::Range<u64> = 21..300;

#[derive(Clone, Debug)]
enum Op {
    /// Begins a request if it may, and waits otherwise.
    Ask(ModelId),
    Close(ModelId),
    /// The last waiting request goes away.
    Leave(ModelId),
    KeepAlive(ModelId, KeepAlive),
    /// Ends one of the actions that are under way.
    Finish {
        index: usize,
        succeeds: bool,
        /// The measured size beyond the estimate, or below it.
        excess: i64,
    },
    Crash(ModelId),
    LoadAsked(ModelId),
    UnloadAsked(ModelId),
    Pinned(ModelId, bool),
    Removed(ModelId),
    Resized(ModelId, u64),
    Wait(u64),
    /// An event that does not belong there.
    Stray(Event),
}

impl Op {
    fn model(&self) -> Option<ModelId> {
        match self {
            Self::Ask(model)
            | Self::Close(model)
            | Self::Leave(model)
            | Self::KeepAlive(model, _)
            | Self::Crash(model)
            | Self::LoadAsked(model)
            | Self::UnloadAsked(model)
            | Self::Pinned(model, _)
            | Self::Removed(model)
            | Self::Resized(model, _) => Some(*model),
            Self::Finish { .. } | Self::Wait(_) | Self::Stray(_) => None,
        }
    }
}

fn model() -> impl Strategy<Value = ModelId> {
    (0..NUM_MODELS).prop_map(ModelId)
}

fn keep_alive() -> impl Strategy<Value = KeepAlive> {
    prop_oneof![
        Just(KeepAlive::Forever),
        (0..500_u64).prop_map(KeepAlive::For),
        Just(KeepAlive::For(u64::MAX))
    ]
}

fn stray() -> impl Strategy<Value = Event> {
    prop_oneof![
        model().prop_map(|model| Event::Wanted { model }),
        (0..99_u32).prop_map(|id| Event::LoadAsked { model: ModelId(NUM_MODELS + id) }),
        (0..99_u32).prop_map(|id| Event::Opened { model: ModelId(NUM_MODELS + id) }),
        model().prop_map(|model| Event::Unreadable { model, why: "no file".into() }),
        Just(Event::Woke),
    ]
}

fn op(max_excess: i64) -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => model().prop_map(Op::Ask),
        6 => model().prop_map(Op::Close),
        2 => model().prop_map(Op::Leave),
        1 => (model(), keep_alive()).prop_map(|(model, keep_alive)| Op::KeepAlive(model, keep_alive)),
        8 => (0..4_usize, prop::bool::weighted(0.85), -3..=max_excess)
            .prop_map(|(index, succeeds, excess)| Op::Finish { index, succeeds, excess }),
        1 => model().prop_map(Op::Crash),
        1 => model().prop_map(Op::LoadAsked),
        1 => model().prop_map(Op::UnloadAsked),
        1 => (model(), prop::bool::weighted(0.3)).prop_map(|(model, is_pinned)| Op::Pinned(model, is_pinned)),
        1 => (model(), prop::bool::weighted(0.1)).prop_map(|(model, is_it)| if is_it {
            Op::Removed(model)
        } else {
            Op::Ask(model)
        }),
        5 => (0..300_u64).prop_map(Op::Wait),
        1 => stray().prop_map(Op::Stray),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    None,
    Starting,
    Running,
    Ending,
}

#[derive(Debug)]
struct Actual {
    settings: ModelSettings,
    process: Process,
    measured_bytes: Option<u64>,
    num_open: u32,
    has_waiting: bool,
    is_removed: bool,
}

impl Actual {
    fn bytes(&self) -> u64 {
        self.measured_bytes.unwrap_or(self.settings.bytes)
    }

    fn used_bytes(&self) -> u64 {
        if self.process == Process::None { 0 } else { self.bytes() }
    }
}

struct World {
    residency: Residency,
    models: BTreeMap<ModelId, Actual>,
    now_ms: u64,
}

impl World {
    fn new(models: Vec<ModelSettings>, min_stay_ms: u64, min_idle_ms: u64) -> Result<Self, TestCaseError> {
        let settings = Settings {
            limit_bytes: LIMIT_BYTES,
            min_stay_ms,
            min_idle_ms,
            backoff_ms: 50,
            max_backoff_ms: MAX_BACKOFF_MS,
        };
        let mut world = Self { residency: Residency::new(settings), models: BTreeMap::new(), now_ms: 0 };
        for (number, settings) in models.into_iter().enumerate() {
            world.add(ModelId(number as u32), settings)?;
        }
        Ok(world)
    }

    fn add(&mut self, model: ModelId, settings: ModelSettings) -> Result<(), TestCaseError> {
        let actual = self.models.entry(model).or_insert(Actual {
            settings: settings.clone(),
            process: Process::None,
            measured_bytes: None,
            num_open: 0,
            has_waiting: false,
            is_removed: false,
        });
        actual.settings = settings.clone();
        if actual.process == Process::None {
            actual.measured_bytes = None;
        }
        self.tell(Event::Added { model, settings })
    }

    fn actual(&mut self, model: ModelId) -> &mut Actual {
        self.models.get_mut(&model).expect("it was added")
    }

    fn used_bytes(&self) -> u64 {
        self.models.values().map(Actual::used_bytes).sum()
    }

    /// Reports an event, carries out the actions, and checks all that must hold at any time.
    fn tell(&mut self, event: Event) -> Result<(), TestCaseError> {
        for action in self.residency.handle(event, self.now_ms) {
            match action {
                Action::Load(model) => {
                    let is_one = self.models.values().all(|other| other.process != Process::Starting);
                    prop_assert!(is_one, "two loads at a time");
                    let actual = self.actual(model);
                    prop_assert_eq!(actual.process, Process::None);
                    actual.process = Process::Starting;
                    prop_assert!(self.used_bytes() <= LIMIT_BYTES, "{} bytes", self.used_bytes());
                }
                Action::Unload(model) => {
                    let actual = self.actual(model);
                    prop_assert_eq!(actual.process, Process::Running);
                    prop_assert_eq!(actual.num_open, 0);
                    prop_assert!(!actual.settings.is_pinned);
                    actual.process = Process::Ending;
                }
            }
        }
        self.models.retain(|_, actual| !actual.is_removed || actual.process != Process::None);
        self.check()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.residency.used_bytes(), self.used_bytes());
        prop_assert!(self.residency.next_wakeup().is_none_or(|at_ms| at_ms > self.now_ms));
        let mut places = Vec::new();
        for (id, actual) in &self.models {
            let state = self.residency.state(*id).expect("it was added");
            prop_assert_eq!(self.residency.may_begin(*id), matches!(state, State::Loaded { .. }));
            prop_assert_eq!(actual.is_removed, state == State::Removed);
            let process = match &state {
                State::Removed => actual.process,
                State::Loading { .. } => Process::Starting,
                State::Draining { .. } if actual.process == Process::Starting => Process::Starting,
                State::Loaded { num_open, .. } | State::Draining { num_open, .. } => {
                    prop_assert_eq!(*num_open, actual.num_open);
                    Process::Running
                }
                State::Unloading { .. } => Process::Ending,
                _ => Process::None,
            };
            prop_assert_eq!(process, actual.process, "{:?}", state);
            match state {
                State::Queued { place } => places.push(place),
                State::Draining { place, .. } | State::Unloading { place } => places.extend(place),
                _ => {}
            }
        }
        places.sort_unstable();
        prop_assert!(places.iter().copied().eq(0..places.len()), "{:?}", places);
        Ok(())
    }

    /// Does as a request does that comes or waits.
    fn ask(&mut self, model: ModelId) -> Result<bool, TestCaseError> {
        let begins = self.residency.may_begin(model);
        if !self.models.contains_key(&model) {
            prop_assert!(!begins && self.residency.state(model).is_none());
            return Ok(false);
        }
        let actual = self.actual(model);
        actual.has_waiting = !begins;
        actual.num_open += u32::from(begins);
        self.tell(if begins { Event::Opened { model } } else { Event::Wanted { model } })?;
        Ok(begins)
    }

    fn close(&mut self, model: ModelId) -> Result<(), TestCaseError> {
        let Some(actual) = self.models.get_mut(&model).filter(|actual| actual.num_open > 0) else {
            return Ok(());
        };
        actual.num_open -= 1;
        self.tell(Event::Closed { model })
    }

    fn finish(&mut self, index: usize, succeeds: bool, excess: i64) -> Result<(), TestCaseError> {
        let is_under_way = |actual: &Actual| matches!(actual.process, Process::Starting | Process::Ending);
        let under_way: Vec<ModelId> =
            self.models.iter().filter(|(_, actual)| is_under_way(actual)).map(|(id, _)| *id).collect();
        let Some(model) = under_way.get(index % under_way.len().max(1)).copied() else { return Ok(()) };
        let actual = self.actual(model);
        let is_start = actual.process == Process::Starting;
        let event = if is_start && succeeds {
            let mut bytes = actual.settings.bytes.saturating_add_signed(excess);
            if excess <= 0 {
                // Only those outgrow their last size that outgrow the estimate.
                bytes = bytes.min(actual.bytes());
            }
            actual.measured_bytes = Some(bytes);
            Event::Loaded { model, bytes: Some(bytes) }
        } else if succeeds {
            Event::Unloaded { model }
        } else {
            Event::Failed { model, why: "failed".into() }
        };
        actual.process = if is_start && succeeds { Process::Running } else { Process::None };
        self.tell(event)
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        if op.model().is_some_and(|model| !self.models.contains_key(&model)) {
            return Ok(());
        }
        match op {
            Op::Ask(model) => self.ask(model).map(|_| ()),
            Op::Close(model) => self.close(model),
            Op::Leave(model) => {
                self.actual(model).has_waiting = false;
                self.tell(Event::Left { model })
            }
            Op::KeepAlive(model, keep_alive) => self.tell(Event::KeepAlive { model, keep_alive }),
            Op::Finish { index, succeeds, excess } => self.finish(index, succeeds, excess),
            Op::Crash(model) => {
                let actual = self.actual(model);
                if actual.process != Process::Running {
                    return Ok(());
                }
                actual.process = Process::None;
                self.tell(Event::Failed { model, why: "crashed".into() })
            }
            Op::LoadAsked(model) => self.tell(Event::LoadAsked { model }),
            Op::UnloadAsked(model) => self.tell(Event::UnloadAsked { model }),
            Op::Pinned(model, is_pinned) => {
                let actual = self.actual(model);
                actual.settings.is_pinned = is_pinned && !actual.is_removed;
                self.tell(Event::Pinned { model, is_pinned })
            }
            Op::Removed(model) => {
                let actual = self.actual(model);
                (actual.is_removed, actual.settings.is_pinned) = (true, false);
                self.tell(Event::Removed { model })
            }
            Op::Resized(model, _) if self.models[&model].is_removed => Ok(()),
            Op::Resized(model, bytes) => {
                let settings = ModelSettings { bytes, ..self.models[&model].settings.clone() };
                self.add(model, settings)
            }
            Op::Wait(ms) => {
                let end_ms = self.now_ms + ms;
                while let Some(at_ms) = self.residency.next_wakeup().filter(|at_ms| *at_ms <= end_ms) {
                    self.now_ms = at_ms;
                    self.tell(Event::Woke)?;
                }
                self.now_ms = end_ms;
                Ok(())
            }
            Op::Stray(event) => self.tell(event),
        }
    }

    /// Lets everything succeed, and requests for all models come without a pause. Each stream ends once the next one
    /// has begun or has to wait. Returns the models that no request reached.
    fn go_on(&mut self, num_rounds: usize) -> Result<Vec<ModelId>, TestCaseError> {
        let mut missing: Vec<ModelId> = self.models.keys().copied().collect();
        for _ in 0..num_rounds {
            for model in self.models.keys().copied().collect::<Vec<_>>() {
                let num_before = self.models.get(&model).map_or(0, |actual| actual.num_open);
                if self.ask(model)? {
                    missing.retain(|other| *other != model);
                }
                for _ in 0..num_before {
                    self.close(model)?;
                }
                self.finish(0, true, 0)?;
            }
            self.apply(Op::Wait(20))?;
        }
        missing.retain(|model| self.models.contains_key(model));
        Ok(missing)
    }
}

fn models() -> impl Strategy<Value = Vec<ModelSettings>> {
    let settings = (1..24_u64, prop::bool::weighted(0.1), -1..2_i32, keep_alive());
    let settings = settings.prop_map(|(bytes, is_pinned, priority, keep_alive)| ModelSettings {
        bytes,
        is_pinned,
        priority,
        keep_alive,
    });
    prop::collection::vec(settings, NUM_MODELS as usize)
}

/// Rounds in which each of the models has its turn, with the longest stay and back-off.
const NUM_ROUNDS: usize = 200;

fn check_that_all_are_served(world: &mut World) -> Result<(), TestCaseError> {
    for model in world.go_on(NUM_ROUNDS)? {
        let state = world.residency.state(model).expect("it was added");
        prop_assert!(matches!(state, State::TooLarge(_)), "{:?}: {:?}", model, state);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_stays_below_the_limit_and_every_model_has_its_turn(
        models in models(),
        stay in (MIN_STAYS_MS, 0..60_u64),
        ops in prop::collection::vec(op(0), 0..200),
    ) {
        let mut world = World::new(models, stay.0, stay.1)?;
        for op in ops {
            world.apply(op)?;
            prop_assert!(world.used_bytes() <= LIMIT_BYTES);
        }
        check_that_all_are_served(&mut world)?;
    }

    #[test]
    fn models_that_outgrow_their_estimates_make_room_before_others_load(
        models in models(),
        stay in (MIN_STAYS_MS, 0..60_u64),
        ops in prop::collection::vec(
            prop_oneof![9 => op(6), 1 => (model(), 1..24_u64).prop_map(|(model, bytes)| Op::Resized(model, bytes))],
            0..200,
        ),
    ) {
        let mut world = World::new(models, stay.0, stay.1)?;
        for op in ops {
            world.apply(op)?;
        }
        check_that_all_are_served(&mut world)?;
        let pinned = world.models.values().filter(|actual| actual.settings.is_pinned);
        let pinned_bytes: u64 = pinned.map(Actual::used_bytes).sum();
        prop_assert!(world.used_bytes() <= LIMIT_BYTES.max(pinned_bytes));
    }

    #[test]
    fn the_same_events_give_the_same_actions(
        models in models(),
        ops in prop::collection::vec(op(6), 0..100),
    ) {
        let mut states = Vec::new();
        for _ in 0..2 {
            let mut world = World::new(models.clone(), 100, 10)?;
            for op in ops.clone() {
                world.apply(op)?;
            }
            states.push(format!("{:?}", world.residency));
        }
        prop_assert_eq!(&states[0], &states[1]);
    }
}
