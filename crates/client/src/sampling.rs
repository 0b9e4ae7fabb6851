//! Sampling parameters of a turn. What is not set takes the server's default; the server checks the bounds.

use hawser_proto::v1;

/// How the next token is chosen: a builder over the wire message.
///
/// ```
/// use hawser_client::Sampling;
/// let greedy = Sampling::greedy().max_tokens(64).stop("\n\n");
/// let creative = Sampling::new().temperature(0.8).top_p(0.95).seed(7);
/// assert_ne!(greedy, creative);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling(v1::Sampling);

impl Sampling {
    /// The server's defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Always the most likely token.
    #[must_use]
    pub fn greedy() -> Self {
        Self::default().temperature(0.0)
    }

    /// 0 is greedy; up to 100.
    #[must_use]
    pub fn temperature(mut self, value: f32) -> Self {
        self.0.temperature = Some(value);
        self
    }

    /// Keep the `k` most likely tokens; 0 keeps all.
    #[must_use]
    pub fn top_k(mut self, k: u32) -> Self {
        self.0.top_k = Some(k);
        self
    }

    /// Keep the smallest set with at least this probability.
    #[must_use]
    pub fn top_p(mut self, value: f32) -> Self {
        self.0.top_p = Some(value);
        self
    }

    /// Drop tokens below this share of the most likely one.
    #[must_use]
    pub fn min_p(mut self, value: f32) -> Self {
        self.0.min_p = Some(value);
        self
    }

    /// Above 1 makes tokens that are already present less likely.
    #[must_use]
    pub fn repetition_penalty(mut self, value: f32) -> Self {
        self.0.repetition_penalty = Some(value);
        self
    }

    /// Subtracted once from the logits of tokens already generated.
    #[must_use]
    pub fn presence_penalty(mut self, value: f32) -> Self {
        self.0.presence_penalty = Some(value);
        self
    }

    /// Subtracted per occurrence among the generated tokens.
    #[must_use]
    pub fn frequency_penalty(mut self, value: f32) -> Self {
        self.0.frequency_penalty = Some(value);
        self
    }

    /// Same seed, same input, same tokens.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.0.seed = Some(seed);
        self
    }

    /// Most tokens to generate.
    #[must_use]
    pub fn max_tokens(mut self, tokens: u32) -> Self {
        self.0.max_tokens = Some(tokens);
        self
    }

    /// One more string that ends the generation; none of it is returned.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.0.stop.push(text.into());
        self
    }

    /// One more token that ends the generation.
    #[must_use]
    pub fn stop_token(mut self, id: u32) -> Self {
        self.0.stop_token_ids.push(id);
        self
    }

    /// Return the log-probability of each token and of `alternatives` others.
    #[must_use]
    pub fn logprobs(mut self, alternatives: u32) -> Self {
        self.0.logprobs = Some(alternatives);
        self
    }

    /// Go on after the model's end tokens, for benchmarks.
    #[must_use]
    pub fn ignore_eos(mut self) -> Self {
        self.0.ignore_eos = true;
        self
    }

    /// As it travels.
    #[must_use]
    pub fn to_wire(&self) -> v1::Sampling {
        self.0.clone()
    }
}
