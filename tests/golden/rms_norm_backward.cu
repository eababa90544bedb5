#include "astitch.cuh"
// stitch_0: grid 32 x 512 threads, 8352 B shared
//   jit(rms_norm_backward)/transpose(jvp())/mul
//   jit(rms_norm_backward)/jvp()/square
//   jit(rms_norm_backward)/jvp()/reduce_sum
//   jit(rms_norm_backward)/jvp()/div
//   jit(rms_norm_backward)/jvp()/add
//   jit(rms_norm_backward)/jvp()/rsqrt
//   jit(rms_norm_backward)/transpose(jvp())/reduce_sum
//   jit(rms_norm_backward)/jvp()/mul
//   and 3 more
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_dy_1,
    const float* __restrict__ p_gamma_1,
    float* __restrict__ p_add_any_1,
    float* __restrict__ p_reduce_sum_36,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_reduce_sum_36_partial0_0 = reinterpret_cast<float*>(scratch + 0);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(8352);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 8224, 32);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 0, 2056);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 516);
  {  // loop 0: outer 64 / 2 threads, row 1 / 1 threads x 1, col 768 / 256 threads x 1 x 4; 32 tasks; row-reduce: 2 rows a block, 256 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 256;
    const int ty = 0;
    const int to = threadIdx.x / 256;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type dy_1_kept_0[1];
    words_of<Vec<float, 4>>::type x_1_kept_0[1];
    float mul_32_kept_0[4];
    Reduce0::State reduce_sum_36_state_0[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) reduce_sum_36_state_0[i] = Reduce0::identity();
    if (first < 32) {
      const int task = first;
      const int outer = task * 2 + to;
      Reduce0::State reduce_sum_35_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_35_state_0[i] = Reduce0::identity();
      Reduce0::State reduce_sum_38_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_38_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 768) {
            const int at_0 = outer * 768 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            x_1_kept_0[k + l] = to_words(x_1_v_0);
            const Vec<float, 4> dy_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_dy_1 + (at_0));
            dy_1_kept_0[k + l] = to_words(dy_1_v_0);
            const Vec<float, 4> gamma_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_gamma_1 + (col));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float square_1 = hlo_multiply(x_1, x_1);
              reduce_sum_35_state_0[0].f0 = hlo_multiply_add(x_1, x_1, reduce_sum_35_state_0[0].f0);
              const float dy_1 = load_as<float>(dy_1_v_0.v[lane]);
              const float gamma_1 = load_as<float>(gamma_1_v_0.v[lane]);
              const float mul_32 = hlo_multiply(dy_1, gamma_1);
              mul_32_kept_0[k * 4 + l * 4 + lane] = mul_32;
              const float mul_33 = hlo_multiply(x_1, mul_32);
              reduce_sum_38_state_0[0].f0 = hlo_multiply_add(x_1, mul_32, reduce_sum_38_state_0[0].f0);
            }
          }
        }
      }
      reduce_warps_together<Reduce0>(exchange_0_0, reduce_sum_35_state_0, reduce_sum_38_state_0);
      __syncthreads();
      combine_warps_together<Reduce0, 256>(exchange_0_0, reduce_sum_35_state_0, reduce_sum_38_state_0);
      const float reduce_sum_35 = reduce_sum_35_state_0[0].f0;
      const float div_3_divide_0 = hlo_divide_shared(reduce_sum_35, 768.0f);
      const float add_3_add_0 = hlo_add(div_3_divide_0, 1e-06f);
      const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_3_add_0);
      const float reduce_sum_38 = reduce_sum_38_state_0[0].f0;
      const float div_4_divide_0 = hlo_divide(rsqrt_1_rsqrt_0, add_3_add_0);
      const float mul_23_multiply_0 = hlo_multiply(div_4_divide_0, -0.5f);
      const float mul_38_multiply_0 = hlo_multiply(reduce_sum_38, mul_23_multiply_0);
      const float div_5_divide_0 = hlo_divide_shared(mul_38_multiply_0, 768.0f);
      const float reduce_sum_39 = hlo_add(0.0f, div_5_divide_0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 768) {
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            const int at_0__1 = outer * 768 + col;
            Vec<float, 4> add_any_1_w_0;
            const Vec<float, 4> dy_1_v_0__1 = from_words<Vec<float, 4>>(dy_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float mul_32__1 = mul_32_kept_0[k * 4 + l * 4 + lane];
              const float mul_37 = hlo_multiply(mul_32__1, rsqrt_1_rsqrt_0);
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float mul_22 = hlo_multiply(x_1__1, 2.0f);
              const float mul_39 = hlo_multiply(reduce_sum_39, mul_22);
              const float add_any_1 = hlo_add(mul_37, mul_39);
              add_any_1_w_0.v[lane] = store_as<float>(add_any_1);
              const float mul_27 = hlo_multiply(x_1__1, rsqrt_1_rsqrt_0);
              const float dy_1__1 = load_as<float>(dy_1_v_0__1.v[lane]);
              const float mul_28 = hlo_multiply(mul_27, dy_1__1);
              reduce_sum_36_state_0[l * 4 + lane].f0 = hlo_multiply_add(mul_27, dy_1__1, reduce_sum_36_state_0[l * 4 + lane].f0);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_add_any_1 + (at_0__1)) = add_any_1_w_0;
          }
        }
      }
    }
    reduce_strided<Reduce0, 2, 256, 512, 4, false, false>(reduce_sum_36_state_0, exchange_0_1);
    if (first < 32) {
      {
        const int l = 0;
        const int col = l * 1024 + tx * 4;
        if (col < 768) {
          Vec<float, 4> p_reduce_sum_36_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            p_reduce_sum_36_partial0_0_w_0.v[lane] = store_as<float>(reduce_sum_36_state_0[l * 4 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<float, 4>*>(p_reduce_sum_36_partial0_0 + (first * 768 + col)) = p_reduce_sum_36_partial0_0_w_0;
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.36 before level 1
  {  // loop 1: outer 1 / 1 threads, row 32 / 4 threads x 8, col 768 / 128 threads x 1 x 1; 6 tasks; column-reduce: 4 rows x 128 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 128;
    const int ty = threadIdx.x / 128;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 6) {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_36_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_36_state_0__1[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 8; ++turn) {
        const int k = turn;
        const int row = k * 4 + ty;
        {
          const int l = 0;
          const int col = l * 128 + tx + col_tile * 128;
          const int at_0__2 = row * 768 + col;
          reduce_sum_36_state_0__1[l] = Reduce0::combine(reduce_sum_36_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_sum_36_partial0_0[at_0__2])});
        }
      }
      reduce_strided<Reduce0, 4, 128, 512, 4, false, false>(reduce_sum_36_state_0__1, exchange_0_0__1);
      {
        const int l = 0;
        const int col = l * 128 + tx + col_tile * 128;
        const float reduce_sum_36 = reduce_sum_36_state_0__1[l].f0;
        if (ty < 1) {
          p_reduce_sum_36[col] = store_as<float>(reduce_sum_36);
        }
      }
    }
  }
}
