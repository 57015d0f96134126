//! The shell around the model.
