#include "astitch.cuh"
// stitch_0: grid 32 x 512 threads, 16448 B shared
//   jit(layer_norm_backward)/transpose(jvp())/mul
//   jit(layer_norm_backward)/jvp()/reduce_sum
//   jit(layer_norm_backward)/jvp()/div
//   jit(layer_norm_backward)/jvp()/sub
//   jit(layer_norm_backward)/jvp()/square
//   jit(layer_norm_backward)/jvp()/add
//   jit(layer_norm_backward)/jvp()/rsqrt
//   jit(layer_norm_backward)/transpose(jvp())/reduce_sum
//   and 4 more
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
    float* __restrict__ p_add_any_5,
    float* __restrict__ p_reduce_sum_81,
    float* __restrict__ p_reduce_sum_79,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_reduce_sum_81_partial0_0 = reinterpret_cast<float*>(scratch + 0);
  float* const p_reduce_sum_79_partial0_0 = reinterpret_cast<float*>(scratch + 98304);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(16448);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 2056);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 8224, 2056);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 516);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__2, 0, 516);
  {  // loop 0: outer 64 / 2 threads, row 1 / 1 threads x 1, col 768 / 256 threads x 1 x 4; 32 tasks; row-reduce: 2 rows a block, 256 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 256;
    const int ty = 0;
    const int to = threadIdx.x / 256;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[1];
    words_of<Vec<float, 4>>::type gamma_1_kept_0[1];
    words_of<Vec<float, 4>>::type dy_1_kept_0[1];
    Reduce0::State reduce_sum_81_state_0[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) reduce_sum_81_state_0[i] = Reduce0::identity();
    Reduce0::State reduce_sum_79_state_0[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) reduce_sum_79_state_0[i] = Reduce0::identity();
    if (first < 32) {
      const int task = first;
      const int outer = task * 2 + to;
      Reduce0::State reduce_sum_77_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_77_state_0[i] = Reduce0::identity();
      Reduce0::State reduce_sum_84_plain_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_84_plain_state_0[i] = Reduce0::identity();
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
            gamma_1_kept_0[k + l] = to_words(gamma_1_v_0);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_sum_77_state_0[0] = Reduce0::combine(reduce_sum_77_state_0[0], Reduce0::State{x_1});
              const float dy_1 = load_as<float>(dy_1_v_0.v[lane]);
              const float gamma_1 = load_as<float>(gamma_1_v_0.v[lane]);
              const float mul_32 = hlo_multiply(dy_1, gamma_1);
              reduce_sum_84_plain_state_0[0].f0 = hlo_multiply_add(dy_1, gamma_1, reduce_sum_84_plain_state_0[0].f0);
              reduce_sum_79_state_0[l * 4 + lane] = Reduce0::combine(reduce_sum_79_state_0[l * 4 + lane], Reduce0::State{dy_1});
            }
          }
        }
      }
      reduce_warps_together<Reduce0>(exchange_0_0, reduce_sum_77_state_0, reduce_sum_84_plain_state_0);
      __syncthreads();
      combine_warps_together<Reduce0, 256>(exchange_0_0, reduce_sum_77_state_0, reduce_sum_84_plain_state_0);
      Reduce0::State reduce_sum_78_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_78_state_0[i] = Reduce0::identity();
      Reduce0::State reduce_sum_83_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_83_state_0[i] = Reduce0::identity();
      Reduce0::State reduce_sum_86_plain_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_86_plain_state_0[i] = Reduce0::identity();
      const float reduce_sum_77 = reduce_sum_77_state_0[0].f0;
      const float div_5_divide_0 = hlo_divide_shared(reduce_sum_77, 768.0f);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 768) {
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            const Vec<float, 4> dy_1_v_0__1 = from_words<Vec<float, 4>>(dy_1_kept_0[k + l]);
            const Vec<float, 4> gamma_1_v_0__1 = from_words<Vec<float, 4>>(gamma_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float sub_11 = hlo_subtract(x_1__1, div_5_divide_0);
              const float square_1 = hlo_multiply(sub_11, sub_11);
              reduce_sum_78_state_0[0].f0 = hlo_multiply_add(sub_11, sub_11, reduce_sum_78_state_0[0].f0);
              const float dy_1__1 = load_as<float>(dy_1_v_0__1.v[lane]);
              const float gamma_1__1 = load_as<float>(gamma_1_v_0__1.v[lane]);
              const float mul_32__1 = hlo_multiply(dy_1__1, gamma_1__1);
              const float mul_33 = hlo_multiply(sub_11, mul_32__1);
              reduce_sum_83_state_0[0].f0 = hlo_multiply_add(sub_11, mul_32__1, reduce_sum_83_state_0[0].f0);
              const float mul_22 = hlo_multiply(sub_11, 2.0f);
              reduce_sum_86_plain_state_0[0].f0 = hlo_multiply_add(sub_11, 2.0f, reduce_sum_86_plain_state_0[0].f0);
            }
          }
        }
      }
      reduce_warps_together<Reduce0>(exchange_0_1, reduce_sum_78_state_0, reduce_sum_83_state_0, reduce_sum_86_plain_state_0);
      __syncthreads();
      combine_warps_together<Reduce0, 256>(exchange_0_1, reduce_sum_78_state_0, reduce_sum_83_state_0, reduce_sum_86_plain_state_0);
      const float reduce_sum_78 = reduce_sum_78_state_0[0].f0;
      const float div_6_divide_0 = hlo_divide_shared(reduce_sum_78, 768.0f);
      const float add_3_add_0 = hlo_add(div_6_divide_0, 1e-06f);
      const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_3_add_0);
      const float reduce_sum_83 = reduce_sum_83_state_0[0].f0;
      const float div_7_divide_0 = hlo_divide(rsqrt_1_rsqrt_0, add_3_add_0);
      const float mul_23_multiply_0 = hlo_multiply(div_7_divide_0, -0.5f);
      const float mul_38_multiply_0 = hlo_multiply(reduce_sum_83, mul_23_multiply_0);
      const float div_8_divide_0 = hlo_divide_shared(mul_38_multiply_0, 768.0f);
      const float reduce_sum_85 = hlo_add(0.0f, div_8_divide_0);
      const float reduce_sum_84_plain_0 = reduce_sum_84_plain_state_0[0].f0;
      const float reduce_sum_84_multiply_0 = hlo_multiply(reduce_sum_84_plain_0, rsqrt_1_rsqrt_0);
      const float reduce_sum_84_negate_0 = hlo_negate(reduce_sum_84_multiply_0);
      const float reduce_sum_86_plain_0 = reduce_sum_86_plain_state_0[0].f0;
      const float reduce_sum_86_multiply_0 = hlo_multiply(reduce_sum_86_plain_0, reduce_sum_85);
      const float reduce_sum_86_negate_0 = hlo_negate(reduce_sum_86_multiply_0);
      const float add_any_4_add_0 = hlo_add(reduce_sum_84_negate_0, reduce_sum_86_negate_0);
      const float div_9_divide_0 = hlo_divide_shared(add_any_4_add_0, 768.0f);
      const float reduce_sum_87 = hlo_add(0.0f, div_9_divide_0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 768) {
            const Vec<float, 4> dy_1_v_0__2 = from_words<Vec<float, 4>>(dy_1_kept_0[k + l]);
            const Vec<float, 4> gamma_1_v_0__2 = from_words<Vec<float, 4>>(gamma_1_kept_0[k + l]);
            const Vec<float, 4> x_1_v_0__2 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            const int at_0__1 = outer * 768 + col;
            Vec<float, 4> add_any_5_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float dy_1__2 = load_as<float>(dy_1_v_0__2.v[lane]);
              const float gamma_1__2 = load_as<float>(gamma_1_v_0__2.v[lane]);
              const float mul_32__2 = hlo_multiply(dy_1__2, gamma_1__2);
              const float mul_37 = hlo_multiply(mul_32__2, rsqrt_1_rsqrt_0);
              const float x_1__2 = load_as<float>(x_1_v_0__2.v[lane]);
              const float sub_11__1 = hlo_subtract(x_1__2, div_5_divide_0);
              const float mul_22__1 = hlo_multiply(sub_11__1, 2.0f);
              const float mul_39 = hlo_multiply(reduce_sum_85, mul_22__1);
              const float add_any_3 = hlo_add(mul_37, mul_39);
              const float add_any_5 = hlo_add(add_any_3, reduce_sum_87);
              add_any_5_w_0.v[lane] = store_as<float>(add_any_5);
              const float mul_27 = hlo_multiply(sub_11__1, rsqrt_1_rsqrt_0);
              const float mul_28 = hlo_multiply(mul_27, dy_1__2);
              reduce_sum_81_state_0[l * 4 + lane].f0 = hlo_multiply_add(mul_27, dy_1__2, reduce_sum_81_state_0[l * 4 + lane].f0);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_add_any_5 + (at_0__1)) = add_any_5_w_0;
          }
        }
      }
    }
    reduce_strided<Reduce0, 2, 256, 512, 4, false, false>(reduce_sum_81_state_0, exchange_0_0);
    reduce_strided<Reduce0, 2, 256, 512, 4, false, false>(reduce_sum_79_state_0, exchange_0_1);
    if (first < 32) {
      {
        const int l = 0;
        const int col = l * 1024 + tx * 4;
        if (col < 768) {
          Vec<float, 4> p_reduce_sum_81_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            p_reduce_sum_81_partial0_0_w_0.v[lane] = store_as<float>(reduce_sum_81_state_0[l * 4 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<float, 4>*>(p_reduce_sum_81_partial0_0 + (first * 768 + col)) = p_reduce_sum_81_partial0_0_w_0;
          }
        }
      }
    }
    if (first < 32) {
      {
        const int l = 0;
        const int col = l * 1024 + tx * 4;
        if (col < 768) {
          Vec<float, 4> p_reduce_sum_79_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            p_reduce_sum_79_partial0_0_w_0.v[lane] = store_as<float>(reduce_sum_79_state_0[l * 4 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<float, 4>*>(p_reduce_sum_79_partial0_0 + (first * 768 + col)) = p_reduce_sum_79_partial0_0_w_0;
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.81, %reduce_sum.79 before level 1
  {  // loop 1: outer 1 / 1 threads, row 32 / 4 threads x 8, col 768 / 128 threads x 1 x 1; 6 tasks; column-reduce: 4 rows x 128 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 128;
    const int ty = threadIdx.x / 128;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 6) {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_81_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_81_state_0__1[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 8; ++turn) {
        const int k = turn;
        const int row = k * 4 + ty;
        {
          const int l = 0;
          const int col = l * 128 + tx + col_tile * 128;
          const int at_0__2 = row * 768 + col;
          reduce_sum_81_state_0__1[l] = Reduce0::combine(reduce_sum_81_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_sum_81_partial0_0[at_0__2])});
        }
      }
      reduce_strided<Reduce0, 4, 128, 512, 4, false, false>(reduce_sum_81_state_0__1, exchange_0_0__1);
      {
        const int l = 0;
        const int col = l * 128 + tx + col_tile * 128;
        const float reduce_sum_81 = reduce_sum_81_state_0__1[l].f0;
        if (ty < 1) {
          p_reduce_sum_81[col] = store_as<float>(reduce_sum_81);
        }
      }
    }
  }
  {  // loop 2: outer 1 / 1 threads, row 32 / 4 threads x 8, col 768 / 128 threads x 1 x 1; 6 tasks; column-reduce: 4 rows x 128 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 128;
    const int ty = threadIdx.x / 128;
    const int to = 0;
    const int first = int(blockIdx.x) - 6;
    if (first >= 0 && first < 6) {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_79_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_79_state_0__1[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 8; ++turn) {
        const int k = turn;
        const int row = k * 4 + ty;
        {
          const int l = 0;
          const int col = l * 128 + tx + col_tile * 128;
          const int at_0__3 = row * 768 + col;
          reduce_sum_79_state_0__1[l] = Reduce0::combine(reduce_sum_79_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_sum_79_partial0_0[at_0__3])});
        }
      }
      reduce_strided<Reduce0, 4, 128, 512, 4, false, false>(reduce_sum_79_state_0__1, exchange_0_0__2);
      {
        const int l = 0;
        const int col = l * 128 + tx + col_tile * 128;
        const float reduce_sum_79 = reduce_sum_79_state_0__1[l].f0;
        if (ty < 1) {
          p_reduce_sum_79[col] = store_as<float>(reduce_sum_79);
        }
      }
    }
  }
}
