use proptest::prelude::*;
use trunkline_terminal::sse::{Event, Parser};

fn events(pieces: &[&[u8]]) -> Vec<Event> {
    let (mut parser, mut events) = (Parser::default(), Vec::new());
    for piece in pieces {
        parser.push(piece, &mut events).unwrap();
    }
    events
}

#[test]
fn events_and_comments_are_read() {
    let text = b": model coder is loading, 40 %\n\ndata: {\"a\":1}\n\nevent: x\ndata:b\r\ndata:  c\r\n\r\n:\n\ndata: end";
    let data = |text: &str| Event::Data(text.to_owned());
    assert_eq!(
        events(&[text]),
        [
            Event::Comment("model coder is loading, 40 %".to_owned()),
            data("{\"a\":1}"),
            data("b\n c"),
            Event::Comment(String::new()),
        ],
        "an event without its end is none"
    );
}

#[test]
fn a_line_without_end_is_refused() {
    let (mut parser, mut events) = (Parser::default(), Vec::new());
    let piece = vec![b'x'; 1 << 20];
    let outcomes: Vec<_> = (0..17).map(|_| parser.push(&piece, &mut events)).collect();
    assert!(outcomes[15].is_ok() && outcomes[16].is_err());
}

proptest! {
    #[test]
    fn no_cut_changes_the_events(
        text in "(data: ?|: |id: |é|[a{}\"]|\n|\r|\r\n){0,40}",
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let bytes = text.as_bytes();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(events(&pieces), events(&[bytes]));
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(events(&single), events(&[bytes]));
    }
}
