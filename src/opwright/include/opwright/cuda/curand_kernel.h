// Random numbers in device code: Philox 4x32 with 10 rounds behind every generator's name. The
// streams are independent and uniform, but the numbers are not those of the vendor's library.
#pragma once

#include "cuda_runtime.h"

struct curandStatePhilox4_32_10 {
    unsigned counter[4];
    unsigned key[2];
    unsigned out[4];
    unsigned used;
    float spare;
    bool has_spare;
};
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;
typedef curandStatePhilox4_32_10 curandState;
typedef curandStatePhilox4_32_10 curandState_t;
typedef curandStatePhilox4_32_10 curandStateXORWOW_t;
typedef curandStatePhilox4_32_10 curandStateMRG32k3a_t;

namespace opw::detail {
inline void philox(const unsigned* counter, const unsigned* key, unsigned* out) {
    unsigned c[4] = {counter[0], counter[1], counter[2], counter[3]};
    unsigned k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; ++round) {
        const unsigned long long a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
        const unsigned n0 = static_cast<unsigned>(b >> 32) ^ c[1] ^ k0, n2 = static_cast<unsigned>(a >> 32) ^ c[3] ^ k1;
        c[1] = static_cast<unsigned>(b);
        c[3] = static_cast<unsigned>(a);
        c[0] = n0;
        c[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; ++i) out[i] = c[i];
}
}  // namespace opw::detail

inline void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long offset, curandState* state) {
    state->key[0] = static_cast<unsigned>(seed);
    state->key[1] = static_cast<unsigned>(seed >> 32);
    state->counter[0] = static_cast<unsigned>(offset / 4);
    state->counter[1] = static_cast<unsigned>(offset / 4 >> 32);
    state->counter[2] = static_cast<unsigned>(sequence);
    state->counter[3] = static_cast<unsigned>(sequence >> 32);
    opw::detail::philox(state->counter, state->key, state->out);
    state->used = static_cast<unsigned>(offset % 4);
    state->spare = 0;
    state->has_spare = false;
}
inline unsigned curand(curandState* state) {
    if (state->used == 4) {
        if (++state->counter[0] == 0) ++state->counter[1];
        opw::detail::philox(state->counter, state->key, state->out);
        state->used = 0;
    }
    return state->out[state->used++];
}
// In (0, 1]: 0 is left out, 1 is not.
inline float curand_uniform(curandState* state) { return (static_cast<float>(curand(state) >> 8) + 1.0f) * 0x1p-24f; }
inline double curand_uniform_double(curandState* state) {
    const unsigned long long high = curand(state);
    return (static_cast<double>((high << 32 | curand(state)) >> 11) + 1.0) * 0x1p-53;
}
inline float2 curand_normal2(curandState* state) {
    const float radius = sqrtf(-2.0f * logf(curand_uniform(state))), angle = 6.283185307f * curand_uniform(state);
    return make_float2(radius * cosf(angle), radius * sinf(angle));
}
inline float curand_normal(curandState* state) {
    if (state->has_spare) {
        state->has_spare = false;
        return state->spare;
    }
    const float2 two = curand_normal2(state);
    state->spare = two.y;
    state->has_spare = true;
    return two.x;
}
inline double curand_normal_double(curandState* state) {
    return sqrt(-2.0 * log(curand_uniform_double(state))) * cos(6.283185307179586 * curand_uniform_double(state));
}
inline float curand_log_normal(curandState* state, float mean, float deviation) {
    return expf(mean + deviation * curand_normal(state));
}
inline float4 curand_uniform4(curandState* state) {
    const float x = curand_uniform(state), y = curand_uniform(state), z = curand_uniform(state), w = curand_uniform(state);
    return make_float4(x, y, z, w);
}
