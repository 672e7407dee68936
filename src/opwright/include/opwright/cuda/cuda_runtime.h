// The CUDA dialect on a host compiler: what a program includes to run in the emulator.
#pragma once

#include "detail/types.h"
#include "detail/device.h"
#include "detail/math.h"
#include "detail/host.h"
