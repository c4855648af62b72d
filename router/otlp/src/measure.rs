//! Durations of requests, by the names of OpenTelemetry's conventions for generative AI.
//!
//! <https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/>

use std::time::SystemTime;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, MeterProvider};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use trunkline_base::trace::Record;

/// The bounds that the conventions advise for durations of requests, in seconds.
const DURATIONS: [f64; 14] =
    [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// The bounds that they advise for the time to the first token.
const FIRST_TOKEN: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// The bounds that they advise for the time of each further token.
const PER_TOKEN: [f64; 13] = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];

pub(crate) struct Instruments {
    duration: Histogram<f64>,
    first_token: Histogram<f64>,
    per_token: Histogram<f64>,
}

impl Instruments {
    pub(crate) fn new(meters: &SdkMeterProvider) -> Self {
        let meter = meters.meter("trunkline");
        let seconds = |name: &'static str, about: &'static str, bounds: &[f64]| {
            let builder = meter.f64_histogram(name).with_unit("s").with_description(about);
            builder.with_boundaries(bounds.to_vec()).build()
        };
        Self {
            duration: seconds(
                "gen_ai.server.request.duration",
                "Time from a request's arrival to its end",
                &DURATIONS,
            ),
            first_token: seconds(
                "gen_ai.server.time_to_first_token",
                "Time from a request's arrival to its first output token",
                &FIRST_TOKEN,
            ),
            per_token: seconds(
                "gen_ai.server.time_per_output_token",
                "Mean time of the output tokens after the first one",
                &PER_TOKEN,
            ),
        }
    }

    pub(crate) fn record(&self, record: &Record) {
        let mut attributes = vec![
            KeyValue::new("gen_ai.operation.name", record.operation),
            KeyValue::new("gen_ai.provider.name", "trunkline"),
            KeyValue::new("gen_ai.request.model", record.model.clone()),
        ];
        if let Some(code) = record.error {
            attributes.push(KeyValue::new("error.type", code));
        }
        let seconds =
            |from: SystemTime, to: SystemTime| to.duration_since(from).map_or(0.0, |time| time.as_secs_f64());
        self.duration.record(seconds(record.arrived, SystemTime::now()), &attributes);
        let Some(first) = record.first_token() else { return };
        self.first_token.record(seconds(record.arrived, first), &attributes);
        for sequence in &record.sequences {
            if let (Some(first), Some(last)) = (sequence.first_token, sequence.last_token)
                && sequence.tokens.output > 1
            {
                let mean = seconds(first, last) / f64::from(sequence.tokens.output - 1);
                self.per_token.record(mean, &attributes);
            }
        }
    }
}
