// The gated activation of Llama's feed-forward layer. Read next: rope.h.
#pragma once

#include "core/tensor.h"

namespace lockstep {

// silu(gate) * up for x [.., 2 f], whose rows hold gate then up -> [.., f] (Shazeer 2020).
Tensor swiglu(const Tensor& x);

}  // namespace lockstep
