// Structures that a device moves in one piece, and ones that it does not: 32 threads, one each.
#include <cstdio>
#include <vector>

typedef struct __align__(16) Body_ { float x, y, z, mass; } Body;
struct alignas(8) Pair { int first; float second; };
template <class T> struct alignas(2 * sizeof(T)) Two { T a, b; };
struct alignas(32) Big { double a, b, c, d; };
struct Plain { float x, y, z, w; };
__constant__ Body table[2] = {{1, 2, 3, 4}, {5}};

__device__ Body moved(Body body) {
    body.x += body.mass;
    body.z *= 2;
    return body;
}

__global__ void all(Body* bodies, Pair* pairs, Two<float>* twos, Big* bigs, Plain* plains, Body one) {
    __shared__ Body tile[32];
    const int i = threadIdx.x;
    tile[i] = bodies[i];  // @direct
    __syncthreads();
    Body body = tile[31 - i];  // @tile
    body.y += table[1].x + table[1].y + one.mass;
    bodies[i] = moved(body);  // @returned
    Pair pair = pairs[i];  // @pair
    pair.first += 1;
    pairs[i] = pair;  // @pair_out
    twos[i] = Two<float>{1.0f, 2.0f};  // @two
    Big big = bigs[i];  // @big
    big.c = 3;
    bigs[i] = big;  // @big_out
    Plain plain = plains[i];  // @plain
    plain = Plain{plain.w, plain.z, plain.y, plain.x};
    plains[i] = plain;  // @plain_out
}

int main() {
    const Body one = {1, 2, 3, 4}, short_one{7};
    std::vector<Body> host(32, one);
    host[31] = short_one;
    Body* bodies;
    Pair* pairs;
    Two<float>* twos;
    Big* bigs;
    Plain* plains;
    cudaMalloc(&bodies, 32 * sizeof(Body));
    cudaMalloc(&pairs, 32 * sizeof(Pair));
    cudaMalloc(&twos, 32 * sizeof(Two<float>));
    cudaMalloc(&bigs, 32 * sizeof(Big));
    cudaMalloc(&plains, 32 * sizeof(Plain));
    cudaMemcpy(bodies, host.data(), 32 * sizeof(Body), cudaMemcpyHostToDevice);
    cudaMemset(pairs, 0, 32 * sizeof(Pair));
    cudaMemset(bigs, 0, 32 * sizeof(Big));
    cudaMemset(plains, 0, 32 * sizeof(Plain));
    all<<<1, 32>>>(bodies, pairs, twos, bigs, plains, one);
    cudaMemcpy(host.data(), bodies, 32 * sizeof(Body), cudaMemcpyDeviceToHost);
    std::printf("%g %g %g %g\n", host[0].x, host[0].y, host[1].x, host[1].y);
    cudaFree(bodies);
    cudaFree(pairs);
    cudaFree(twos);
    cudaFree(bigs);
    cudaFree(plains);
}
