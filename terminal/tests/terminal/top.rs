use std::time::Duration;

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use trunkline_terminal::top::metrics::{Samples, quantile, since};
use trunkline_terminal::top::screen::{Heading, draw};
use trunkline_terminal::top::view::{Scrape, View};

#[test]
fn samples_are_read_with_their_labels() {
    let text = "# HELP a_total x\na_total{tenant=\"x \\\"y\\\", \\\\z}\",lane=\"0\"} 3\na_total{tenant=\"b\"} 4.5 1700000000\n\
                plain 1e3\nbroken{ 1\nnone\n";
    let samples = Samples::parse(text);
    assert_eq!(
        (samples.sum("a_total"), samples.sum("plain"), samples.sum("none")),
        (Some(7.5), Some(1000.0), None)
    );
    let tenants = samples.by("a_total", "tenant");
    assert_eq!(tenants, [("b".to_owned(), 4.5), ("x \"y\", \\z}".to_owned(), 3.0)].into());
}

fn histogram(counts: &[(&str, f64)]) -> Samples {
    Samples::parse(&counts.iter().map(|(le, n)| format!("h_bucket{{le=\"{le}\"}} {n}\n")).collect::<String>())
}

#[test]
fn percentiles_are_those_of_the_difference() {
    let before = histogram(&[("1", 5.0), ("2", 5.0), ("+Inf", 5.0)]).buckets("h");
    let now = histogram(&[("1", 5.0), ("2", 9.0), ("+Inf", 10.0)]).buckets("h");
    let between = since(&now, &before);
    assert_eq!(quantile(&between, 0.5), Some(1.625));
    assert_eq!(quantile(&between, 0.99), Some(2.0), "values without an upper bound count as the last one");
    assert_eq!(quantile(&since(&now, &now), 0.5), None);
    assert_eq!(since(&before, &now), before, "a restarted server counts from 0");
}

proptest! {
    #[test]
    fn a_percentile_lies_in_the_bucket_of_its_rank(counts in proptest::collection::vec(0u32..50, 1..8), part in 0.0..1.0f64) {
        let mut sum = 0.0;
        let buckets: Vec<(f64, f64)> = counts.iter().enumerate().map(|(place, count)| {
            sum += f64::from(*count);
            (place as f64 + 1.0, sum)
        }).collect();
        match quantile(&buckets, part) {
            None => prop_assert_eq!(sum, 0.0),
            Some(value) => {
                let up_to = |value: f64| buckets.iter().filter(|(bound, _)| *bound <= value).map(|(_, n)| *n).next_back().unwrap_or(0.0);
                prop_assert!(up_to(value.ceil()) >= part * sum - 1e-9);
                prop_assert!(up_to(value.ceil() - 1.0) <= part * sum + 1e-9);
            }
        }
    }

    #[test]
    fn no_text_breaks_the_parser(text in "[a-z_{}=\"\\\\, 0-9.\n#]{0,80}") {
        Samples::parse(&text);
    }
}

fn scrape(seconds: u64, factor: f64) -> Scrape {
    let text = format!(
        "trunkline_running_sequences 3\ntrunkline_queued_sequences 1\ntrunkline_output_tokens_total {}\n\
         trunkline_prompt_tokens_total {}\ntrunkline_prefix_hit_tokens_total 50\n\
         trunkline_time_to_first_token_seconds_bucket{{le=\"0.064\"}} {}\n\
         trunkline_time_to_first_token_seconds_bucket{{le=\"+Inf\"}} {}\n\
         trunkline_lane_ready{{lane=\"0\"}} 1\ntrunkline_lane_ready{{lane=\"1\"}} 0\n\
         trunkline_lane_running_sequences{{lane=\"0\"}} 3\n\
         trunkline_tenant_output_tokens_total{{tenant=\"alice\"}} {}\ntrunkline_tenant_output_tokens_total{{tenant=\"b\x1b[2Job\"}} 0\n",
        240.0 * factor,
        100.0 * factor,
        factor,
        factor,
        120.0 * factor,
    );
    let cache = serde_json::from_str(
        r#"{"device":{"blocks":2048,"held":12,"cached":500,"pinned":2,"bytes":1557135360},"host":null,"disk":{"slots":100,"blocks":7},"object_store":null}"#,
    );
    let models = serde_json::from_str(
        r#"[{"id":"small","status":{"value":"loaded","memory_bytes":1700000000,"pinned":true}},
            {"id":"coder","status":{"value":"loading","detail":"40 %","memory_bytes":0,"pinned":false}}]"#,
    );
    Scrape {
        at: Duration::from_secs(seconds),
        samples: Samples::parse(&text),
        models: models.unwrap(),
        cache: Some(cache.unwrap()),
        not_ready: None,
    }
}

#[test]
fn a_view_as_text() {
    let (now, before) = (scrape(2, 2.0), scrape(1, 1.0));
    insta::assert_snapshot!(View::new(&now, &before, &before).text());
}

#[test]
fn a_view_fits_screens_of_any_size() {
    let (now, before) = (scrape(2, 2.0), scrape(1, 1.0));
    let view = View::new(&now, &before, &before);
    let heading =
        Heading { url: "http://127.0.0.1:3000", problem: None, speeds: &[0, 120, 240], colours: false };
    let screen = |columns, rows| {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, &view, &heading)).unwrap();
        terminal.backend().to_string()
    };
    insta::assert_snapshot!(screen(80, 24));
    for (columns, rows) in [(1, 1), (10, 5), (40, 12), (200, 60)] {
        screen(columns, rows);
    }
}
