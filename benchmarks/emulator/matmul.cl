// The kernel of matmul.cu in OpenCL C, line by line.
#define TILE 16

__kernel void matmul(__global const float* a, __global const float* b, __global float* c, int n) {
    __local float left[TILE][TILE], right[TILE][TILE];
    int x = get_local_id(0), y = get_local_id(1);
    int column = get_group_id(0) * TILE + x, row = get_group_id(1) * TILE + y;
    float sum = 0;
    for (int first = 0; first < n; first += TILE) {
        left[y][x] = row < n && first + x < n ? a[row * n + first + x] : 0;
        right[y][x] = first + y < n && column < n ? b[(first + y) * n + column] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int p = 0; p < TILE; ++p) sum += left[y][p] * right[p][x];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (row < n && column < n) c[row * n + column] = sum;
}
