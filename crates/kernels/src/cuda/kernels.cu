// Operations on LibTorch's CUDA tensors that would take many of PyTorch's kernels. NVRTC compiles them at the first
// use, so a build needs no CUDA toolkit. In tests, emulated.cpp runs them on the CPU.
//
// Each kernel has the equation of its plain form in `residual_zoo_core::ops`. Numbers are f32 in registers. A pointer
// with a `bool …_bf16` beside it is to f32 or bf16 numbers. All tensors are contiguous.

typedef long long i64;

// Bits of x rounded to bf16, to nearest, ties to even.
__device__ inline unsigned short to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

__device__ inline float load(const void *x, i64 i, bool bf16) {
  return bf16 ? __uint_as_float((unsigned)((const unsigned short *)x)[i] << 16) : ((const float *)x)[i];
}

__device__ inline void store(void *x, i64 i, bool bf16, float value) {
  if (bf16)
    ((unsigned short *)x)[i] = to_bf16(value);
  else
    ((float *)x)[i] = value;
}

// The sum of x over the threads of a block of whole warps, in each thread.
__device__ inline float block_sum(float x) {
  __shared__ float of_warps[32];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += of_warps[warp];
  __syncthreads();
  return sum;
}

// The largest x of the threads of a block of whole warps, in each thread.
__device__ inline float block_max(float x) {
  __shared__ float of_warps[32];
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) x = fmaxf(x, of_warps[warp]);
  __syncthreads();
  return x;
}

// ---- log Z and the logit of the target (core::ops::loss), a block for each row. A row begins `stride` numbers after
// the previous row.

extern "C" __global__ void log_z(const void *logits, const i64 *targets, float *out, int width, i64 stride, bool bf16) {
  i64 row = blockIdx.x * stride;
  // Σ exp(x − max) over the numbers so far. NVRTC has no INFINITY.
  const float nothing = __uint_as_float(0xff800000);
  float max = nothing, sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float x = load(logits, row + i, bf16), larger = fmaxf(max, x);
    if (x == nothing) continue;
    sum = sum * expf(max - larger) + expf(x - larger);
    max = larger;
  }
  float of_row = block_max(max);
  sum = block_sum(sum == 0 ? 0 : sum * expf(max - of_row));
  if (threadIdx.x == 0) {
    out[2 * blockIdx.x] = of_row + logf(sum);
    out[2 * blockIdx.x + 1] = load(logits, row + targets[blockIdx.x], bf16);
  }
}

// d logits = softmax · d log Z + one-hot(target) · d target, for `d` of the shape of `out`. `grad` has the stride of
// the logits, and can be the logits themselves.
extern "C" __global__ void log_z_gradient(const void *logits, const i64 *targets, const float *out, const float *d,
                                          void *grad, int width, i64 stride, bool bf16) {
  i64 row = blockIdx.x * stride;
  float log_z = out[2 * blockIdx.x], d_log_z = d[2 * blockIdx.x], d_target = d[2 * blockIdx.x + 1];
  int target = targets[blockIdx.x];
#pragma unroll 4
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float x = load(logits, row + i, bf16);
    store(grad, row + i, bf16, expf(x - log_z) * d_log_z + (i == target ? d_target : 0));
  }
}

// ---- Weighted sums of the streams of a position (core::ops::mix).

const int MOST = 9;

// out_t = Σ_s w[s, t] x_s for x [positions, n, d] and out [positions, m, d], a thread for each position and feature.
// The weights of position p begin at p · `stride`, and w[s, t] is s · by_s + t · by_t numbers further. If `stride` is
// 0, all positions have the same weights. n, m ≤ 9.
extern "C" __global__ void mix(const float *w, const float *x, float *out, i64 positions, int n, int m, int d, int by_s,
                               int by_t, int stride) {
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= positions * d) return;
  i64 position = at / d, feature = at % d;
  w += position * stride;
  x += position * n * d + feature;
  out += position * m * d + feature;
  float of_streams[MOST];
#pragma unroll
  for (int s = 0; s < MOST; ++s) of_streams[s] = s < n ? x[(i64)s * d] : 0;
#pragma unroll
  for (int t = 0; t < MOST; ++t) {
    if (t >= m) break;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < MOST; ++s)
      if (s < n) sum += w[s * by_s + t * by_t] * of_streams[s];
    out[(i64)t * d] = sum;
  }
}

// dw[s, t] = ⟨x_s, g_t⟩ for each position, a warp each: x [positions, n, d], g [positions, m, d], dw [positions, n, m].
extern "C" __global__ void mix_weights(const float *x, const float *g, float *dw, i64 positions, int n, int m, int d) {
  i64 position = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (position >= positions) return;
  int lane = threadIdx.x % 32;
  x += position * n * d;
  g += position * m * d;
  dw += position * n * m;
  // A row of dw at a time, because all of it would take too many registers.
  for (int s = 0; s < n; ++s) {
    float sums[MOST];
#pragma unroll
    for (int t = 0; t < MOST; ++t) sums[t] = 0;
    for (int j = lane; j < d; j += 32) {
      float of_stream = x[(i64)s * d + j];
#pragma unroll
      for (int t = 0; t < MOST; ++t)
        if (t < m) sums[t] += of_stream * g[(i64)t * d + j];
    }
#pragma unroll
    for (int t = 0; t < MOST; ++t) {
      if (t >= m) break;
      for (int step = 16; step > 0; step /= 2) sums[t] += __shfl_xor_sync(0xffffffff, sums[t], step);
      if (lane == 0) dw[s * m + t] = sums[t];
    }
  }
}

// ---- The normalisations of Sinkhorn and Knopp (core::ops::sinkhorn), a thread for each matrix [n, n], n ≤ 4, and at
// most 64 steps.

const int SIDE = 4, STEPS = 64;

// Divides each line by its sum plus eps, and returns the factors. A line is a column in even steps, and a row in odd
// steps.
__device__ inline void divide(float *matrix, int n, int step, float eps, float *factors) {
  for (int line = 0; line < n; ++line) {
    int first = step % 2 == 0 ? line : line * n, next = step % 2 == 0 ? n : 1;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += matrix[first + k * next];
    factors[line] = 1 / (sum + eps);
    for (int k = 0; k < n; ++k) matrix[first + k * next] *= factors[line];
  }
}

extern "C" __global__ void sinkhorn(const float *matrices, float *out, i64 count, int n, int steps, float eps) {
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  float matrix[SIDE * SIDE], factors[SIDE];
  for (int i = 0; i < n * n; ++i) matrix[i] = matrices[at * n * n + i];
  for (int step = 0; step < steps; ++step) divide(matrix, n, step, eps, factors);
  for (int i = 0; i < n * n; ++i) out[at * n * n + i] = matrix[i];
}

// With y the matrix after a step and f the factor of a line: dx = (dy − Σ dy · y) f along the line.
extern "C" __global__ void sinkhorn_gradient(const float *matrices, const float *grad, float *out, i64 count, int n,
                                             int steps, float eps) {
  i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  float matrix[SIDE * SIDE], d[SIDE * SIDE], after[STEPS][SIDE * SIDE], factors[STEPS][SIDE];
  for (int i = 0; i < n * n; ++i) matrix[i] = matrices[at * n * n + i];
  for (int i = 0; i < n * n; ++i) d[i] = grad[at * n * n + i];
  for (int step = 0; step < steps; ++step) {
    divide(matrix, n, step, eps, factors[step]);
    for (int i = 0; i < n * n; ++i) after[step][i] = matrix[i];
  }
  for (int step = steps - 1; step >= 0; --step)
    for (int line = 0; line < n; ++line) {
      int first = step % 2 == 0 ? line : line * n, next = step % 2 == 0 ? n : 1;
      float along = 0;
      for (int k = 0; k < n; ++k) along += d[first + k * next] * after[step][first + k * next];
      for (int k = 0; k < n; ++k) d[first + k * next] = (d[first + k * next] - along) * factors[step][line];
    }
  for (int i = 0; i < n * n; ++i) out[at * n * n + i] = d[i];
}

// ---- Θ of TokenFormer (crates/tokenformer), a block for each row.

enum Form { NORM_THEN_ACTIVATION, ACTIVATION_THEN_L2, ACTIVATION_THEN_L1 };
enum Activation { GELU_TANH, GELU_ERF, RELU };

__device__ inline float value(int activation, float x) {
  // NaN stays NaN.
  if (activation == RELU) return x < 0 ? 0 : x;
  if (activation == GELU_ERF) return 0.5f * x * (1 + erff(x * 0.70710678f));
  return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

__device__ inline float slope(int activation, float x) {
  if (activation == RELU) return x > 0 ? 1 : 0;
  if (activation == GELU_ERF)
    return 0.5f * (1 + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
  float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * x * x);
}

// The term of an element in the sum for the norm of its row.
__device__ inline float term(int form, int activation, float a) {
  if (form == NORM_THEN_ACTIVATION) return a * a;
  float h = value(activation, a);
  return form == ACTIVATION_THEN_L2 ? h * h : fabsf(h);
}

extern "C" __global__ void theta(const void *a, const float *tau, void *y, int width, bool bf16, int form, int activation,
                                 float eps) {
  i64 row = (i64)blockIdx.x * width;
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += term(form, activation, load(a, row + i, bf16));
  sum = block_sum(sum);
  float norm = form == ACTIVATION_THEN_L1 ? sum : sqrtf(sum);
  float factor = norm == 0 ? 0 : *tau / (norm + eps);
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float x = load(a, row + i, bf16);
    float out = form == NORM_THEN_ACTIVATION ? value(activation, x * factor) : value(activation, x) * factor;
    store(y, row + i, bf16, out);
  }
}

// da, and the contribution of each row to dτ. The derivatives are the same as in the kernel for Flex.
extern "C" __global__ void theta_gradient(const void *a, const float *tau, const void *dy, void *da, float *d_tau,
                                          int width, bool bf16, bool dy_bf16, int form, int activation, float eps) {
  i64 row = (i64)blockIdx.x * width;
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += term(form, activation, load(a, row + i, bf16));
  sum = block_sum(sum);
  float norm = form == ACTIVATION_THEN_L1 ? sum : sqrtf(sum);
  float inverse = norm == 0 ? 0 : 1 / (norm + eps);
  float factor = *tau * inverse;
  // The gradient of the factor.
  float d_factor = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float x = load(a, row + i, bf16), d = load(dy, row + i, dy_bf16);
    d_factor += form == NORM_THEN_ACTIVATION ? slope(activation, x * factor) * d * x : d * value(activation, x);
  }
  d_factor = block_sum(d_factor);
  float by_norm = -d_factor * *tau * inverse * inverse;
  if (form != ACTIVATION_THEN_L1) by_norm = norm == 0 ? 0 : by_norm / norm;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float x = load(a, row + i, bf16), d = load(dy, row + i, dy_bf16), out;
    if (form == NORM_THEN_ACTIVATION) {
      out = slope(activation, x * factor) * d * factor + by_norm * x;
    } else {
      float h = value(activation, x);
      float of_norm = form == ACTIVATION_THEN_L2 ? h : (h > 0) - (h < 0);
      out = (d * factor + by_norm * of_norm) * slope(activation, x);
    }
    store(da, row + i, bf16, out);
  }
  if (threadIdx.x == 0) d_tau[blockIdx.x] = d_factor * inverse;
}

// ---- RMS norm (core::ops::norm), a block for each row.

// y = x γ / √(mean x² + ε), and the factor 1 / √(…) of each row. γ can be null.
extern "C" __global__ void rms_norm(const float *x, const float *gamma, float *y, float *factors, int width, float eps) {
  i64 row = (i64)blockIdx.x * width;
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += x[row + i] * x[row + i];
  float factor = 1 / sqrtf(block_sum(sum) / width + eps);
  for (int i = threadIdx.x; i < width; i += blockDim.x) y[row + i] = x[row + i] * factor * (gamma ? gamma[i] : 1);
  if (threadIdx.x == 0) factors[blockIdx.x] = factor;
}

// With x̂ = x · factor and g = dy · γ: dx = factor (g − x̂ mean(g x̂)).
extern "C" __global__ void rms_norm_gradient(const float *x, const float *gamma, const float *dy, const float *factors,
                                             float *dx, int width) {
  i64 row = (i64)blockIdx.x * width;
  float factor = factors[blockIdx.x], sum = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    sum += dy[row + i] * (gamma ? gamma[i] : 1) * x[row + i] * factor;
  float mean = block_sum(sum) / width;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float g = dy[row + i] * (gamma ? gamma[i] : 1);
    dx[row + i] = factor * (g - x[row + i] * factor * mean);
  }
}

// Part `blockIdx.y` of dγ = Σ dy x̂ over all rows, a thread for each column.
extern "C" __global__ void rms_norm_gamma(const float *x, const float *dy, const float *factors, float *parts, i64 rows,
                                          int width, int per_part) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= width) return;
  i64 first = (i64)blockIdx.y * per_part, last = first + per_part;
  float sum = 0;
  for (i64 row = first; row < last && row < rows; ++row) sum += dy[row * width + column] * x[row * width + column] * factors[row];
  parts[(i64)blockIdx.y * width + column] = sum;
}
