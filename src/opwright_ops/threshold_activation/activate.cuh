// The operator for one element, computed in float for the short types.
#pragma once

template <class Element> struct Activation {
    using Number = opw::acc_t<Element>;
    Number threshold, alpha, beta;

    __device__ Element operator()(Element element) const {
        const Number x = static_cast<Number>(element);
        // NaN is above no threshold, and tanh of NaN is NaN.
        return static_cast<Element>(x > threshold ? fma(alpha, x, beta) : tanh(x));
    }
};
