//! Operations of the recurrent transformer and of an ordinary one against the length of the
//! sequence: as section 5.1 estimates them, and the FLOPs of the models themselves.

residual_zoo::experiment!("recurrent_cost");
