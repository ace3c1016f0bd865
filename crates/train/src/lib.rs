//! The step trainer, its dashboard, logs, checkpoints and reports
