// All ops, for those who build models of them. Read next: ops/README.md.
#pragma once

#include "core/autograd.h"
#include "core/ops/attention.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/dropout.h"
#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/linear.h"
#include "core/ops/norm.h"
#include "core/ops/reduce.h"
#include "core/ops/rope.h"
#include "core/ops/shape.h"
#include "core/ops/softmax.h"
#include "core/ops/swiglu.h"
