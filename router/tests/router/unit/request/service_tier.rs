use trunkline_generation::request::service_tier::Wanted;
use trunkline_scheduler::Priority::{High, Low, Normal};

#[test]
fn names_and_numbers_select_classes() {
    for (tier, priority, class) in [
        (None, None, Normal),
        (Some("auto"), None, Normal),
        (Some("default"), None, Normal),
        (Some("flex"), None, Low),
        (Some("priority"), None, High),
        (None, Some(0), Normal),
        (None, Some(-1), High),
        (None, Some(i64::MIN), High),
        (None, Some(i64::MAX), Low),
    ] {
        assert_eq!(
            Wanted::from_openai(tier, priority).unwrap(),
            Wanted::Class(class),
            "{tier:?} {priority:?}"
        );
    }
    assert!(Wanted::from_openai(Some("fast"), None).is_err());
    assert!(Wanted::from_openai(Some("flex"), Some(1)).is_err());
    assert_eq!(Wanted::from_anthropic(None).unwrap(), Wanted::Best);
    assert_eq!(Wanted::from_anthropic(Some("standard_only")).unwrap(), Wanted::Class(Normal));
    assert!(Wanted::from_anthropic(Some("flex")).is_err());
}

#[test]
fn the_tenants_highest_class_is_an_upper_bound() {
    for (wanted, highest, class) in [
        (Wanted::Class(High), None, High),
        (Wanted::Class(High), Some(Normal), Normal),
        (Wanted::Class(High), Some(Low), Low),
        (Wanted::Class(Low), Some(High), Low),
        (Wanted::Best, None, Normal),
        (Wanted::Best, Some(High), High),
        (Wanted::Best, Some(Low), Low),
    ] {
        assert_eq!(wanted.granted(highest), class, "{wanted:?} {highest:?}");
    }
}
