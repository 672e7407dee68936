// Written by fit_normal.py, which says what is fitted. Do not edit; run
//     python -m opwright_ops.linear.fit_normal > normal_coefficients.h
#pragma once

namespace coefficients {

// Q(a) = exp(-a^2 / 2) t (tail[0] + t (tail[1] + ...)) with t = 1/(1 + a/3), the
// upper tail of the normal distribution for a >= 0: largest relative error
// 4.66e-8 before rounding.
alignas(64) inline constexpr float tail[9] = {
    0.132954881f, 0.133575127f, 0.112417951f, 0.119916327f,
    -0.0533719957f, 0.218955502f, -0.271278799f, 0.129595116f,
    -0.0227640904f,
};

}  // namespace coefficients
