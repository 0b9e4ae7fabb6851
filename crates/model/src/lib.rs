//! Checkpoints, tokenizer, chat template, layers and sampling.
