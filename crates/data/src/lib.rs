//! Text to tokens to training windows
