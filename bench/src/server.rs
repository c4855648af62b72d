//! A server before it is measured: its model, and how it counts tokens.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::client::Client;
use crate::client::failure::Failure;
use crate::compose::{Composer, Endpoint};
use crate::error::BenchError;
use crate::plan::Plan;
use crate::workload::{Content, Piece, Scale};

/// Words of the first request, and how many more the second one has.
const SHORT_WORDS: u32 = 16;
const MORE_WORDS: u32 = 128;
/// Rounds of asking a server that is full for its first answer.
const MAX_TRIES: u32 = 5;

/// A server that answers.
pub struct Server {
    pub client: Client,
    pub composer: Composer,
    /// The `server` header of its answers.
    pub software: Option<String>,
    /// True if it says how many tokens a request has.
    pub counts_tokens: bool,
}

impl Server {
    /// Asks for the model's name and sends two requests, from which follows the number of tokens of a word.
    pub async fn connect(url: &str, plan: &Plan) -> Result<Self, BenchError> {
        let client = plan.client(url)?;
        let of_server = |failure: Failure| BenchError::Server { url: client.address.url(), failure };
        let model = match &plan.model {
            Some(model) => model.clone(),
            None => first_model(&client.get("/v1/models").await.map_err(of_server)?)
                .ok_or_else(|| BenchError::NoModel { url: client.address.url() })?,
        };
        let mut composer = Composer {
            endpoint: plan.endpoint,
            model,
            stop_early: plan.stop_early,
            extra: plan.extra.clone(),
            scale: Scale::ONE,
        };
        let short = probe(&client, &composer, plan, SHORT_WORDS).await.map_err(of_server)?;
        let long = probe(&client, &composer, plan, SHORT_WORDS + MORE_WORDS).await.map_err(of_server)?;
        let tokens = [&short, &long].map(|answer| answer.usage.map_or(0, |usage| usage.prompt_tokens));
        let counts_tokens = tokens[1] > 0;
        if counts_tokens {
            composer.scale = Scale::measured(tokens[0], tokens[1], u64::from(MORE_WORDS));
        }
        Ok(Self { client, composer, software: short.server, counts_tokens })
    }

    pub fn endpoint(&self) -> Endpoint {
        self.composer.endpoint
    }
}

async fn probe(
    client: &Client,
    composer: &Composer,
    plan: &Plan,
    words: u32,
) -> Result<crate::client::Answer, Failure> {
    let mut conversation = composer.begin();
    let piece = Piece { seed: plan.seed ^ u64::from(words), tokens: words };
    composer.ask(&mut conversation, &Content::Pieces(vec![piece]));
    let body = composer.body(&conversation, 1, &Map::new());
    let mut tries = 0;
    loop {
        tries += 1;
        let answer = client.stream(composer.endpoint.path(), body.clone(), false, |_| ()).await;
        match &answer {
            Err(Failure { retry_after: Some(pause), .. }) if tries < MAX_TRIES => {
                tokio::time::sleep((*pause).min(Duration::from_secs(2))).await;
            }
            _ => return answer,
        }
    }
}

fn first_model(models: &Value) -> Option<String> {
    Some(models.get("data")?.get(0)?.get("id")?.as_str()?.to_owned())
}
