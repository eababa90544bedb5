#include "astitch.cuh"
// stitch_0: grid 16 x 128 threads, 16464 B shared
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
extern "C" __global__ void __launch_bounds__(128, 8) stitch_0(
    const float* __restrict__ p_gamma_1,
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_dy_1,
    float* __restrict__ p_add_any_5,
    float* __restrict__ p_reduce_sum_81,
    float* __restrict__ p_reduce_sum_79,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_reduce_sum_81_partial0_0 = reinterpret_cast<float*>(scratch + 0);
  float* const p_reduce_sum_79_partial0_0 = reinterpret_cast<float*>(scratch + 49152);
  assume_threads<128>();
  ASTITCH_SHARED_ARENA(16464);
  ASTITCH_SHARED(float, x_1_now_0, 8192, 2048);
  ASTITCH_SHARED(float, dy_1_now_0, 0, 2048);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 16432, 8);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 16384, 12);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 130);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__2, 0, 130);
  {  // loop 0: outer 64 / 1 threads, row 1 / 1 threads x 1, col 768 / 128 threads x 2 x 4; 64 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    Reduce0::State reduce_sum_81_state_0[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) reduce_sum_81_state_0[i] = Reduce0::identity();
    Reduce0::State reduce_sum_79_state_0[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) reduce_sum_79_state_0[i] = Reduce0::identity();
    words_of<Vec<float, 4>>::type gamma_1_now_0[2];
    {
      const int k = 0;
      #pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int col = l * 512 + tx * 4;
        if (col < 768) {
          gamma_1_now_0[k * 2 + l] = *reinterpret_cast<const words_of<Vec<float, 4>>::type*>(p_gamma_1 + (col));
        }
      }
    }
    if (const int next = first; next < 64) {
      const int task = next;
      const int next_turn = 0;
      const int outer = task;
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 512 + tx * 4;
          if (col < 768) {
            const int at_0 = outer * 768 + col;
            copy_async(&shared_vec<float, 4>(x_1_now_0, (next_turn * 256 + k * 256 + l * 128 + thread) * 4), p_x_1 + (at_0));
            copy_async(&shared_vec<float, 4>(dy_1_now_0, (next_turn * 256 + k * 256 + l * 128 + thread) * 4), p_dy_1 + (at_0));
          }
        }
      }
    }
    copy_commit();
    int turn = 1;
    for (int task = first; task < 64; task += gridDim.x) {
      turn = turn == 1 ? 0 : turn + 1;
      const int outer = task;
      if (const int next = task + gridDim.x; next < 64) {
        const int task = next;
        const int next_turn = turn < 1 ? turn + 1 : turn - 1;
        const int outer = task;
        {
          const int k = 0;
          #pragma unroll
          for (int l = 0; l < 2; ++l) {
            const int col = l * 512 + tx * 4;
            if (col < 768) {
              const int at_0 = outer * 768 + col;
              copy_async(&shared_vec<float, 4>(x_1_now_0, (next_turn * 256 + k * 256 + l * 128 + thread) * 4), p_x_1 + (at_0));
              copy_async(&shared_vec<float, 4>(dy_1_now_0, (next_turn * 256 + k * 256 + l * 128 + thread) * 4), p_dy_1 + (at_0));
            }
          }
        }
      }
      copy_commit();
      copy_wait<1>();
      Reduce0::State reduce_sum_77_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_77_state_0[i] = Reduce0::identity();
      Reduce0::State reduce_sum_84_plain_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_84_plain_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 512 + tx * 4;
          if (col < 768) {
            const int at_0__1 = outer * 768 + col;
            const Vec<float, 4> x_1_v_0 = shared_vec<float, 4>(x_1_now_0, (turn * 256 + k * 256 + l * 128 + thread) * 4);
            const Vec<float, 4> dy_1_v_0 = shared_vec<float, 4>(dy_1_now_0, (turn * 256 + k * 256 + l * 128 + thread) * 4);
            const Vec<float, 4> gamma_1_v_0 = from_words<Vec<float, 4>>(gamma_1_now_0[k * 2 + l]);
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
      combine_warps_together<Reduce0, 128>(exchange_0_0, reduce_sum_77_state_0, reduce_sum_84_plain_state_0);
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
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 512 + tx * 4;
          if (col < 768) {
            const int at_0__2 = outer * 768 + col;
            const Vec<float, 4> x_1_v_0__1 = shared_vec<float, 4>(x_1_now_0, (turn * 256 + k * 256 + l * 128 + thread) * 4);
            const Vec<float, 4> dy_1_v_0__1 = shared_vec<float, 4>(dy_1_now_0, (turn * 256 + k * 256 + l * 128 + thread) * 4);
            const Vec<float, 4> gamma_1_v_0__1 = from_words<Vec<float, 4>>(gamma_1_now_0[k * 2 + l]);
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
      combine_warps_together<Reduce0, 128>(exchange_0_1, reduce_sum_78_state_0, reduce_sum_83_state_0, reduce_sum_86_plain_state_0);
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
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 512 + tx * 4;
          if (col < 768) {
            const int at_0__3 = outer * 768 + col;
            const Vec<float, 4> dy_1_v_0__2 = shared_vec<float, 4>(dy_1_now_0, (turn * 256 + k * 256 + l * 128 + thread) * 4);
            const Vec<float, 4> gamma_1_v_0__2 = from_words<Vec<float, 4>>(gamma_1_now_0[k * 2 + l]);
            const Vec<float, 4> x_1_v_0__2 = shared_vec<float, 4>(x_1_now_0, (turn * 256 + k * 256 + l * 128 + thread) * 4);
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
            *reinterpret_cast<Vec<float, 4>*>(p_add_any_5 + (at_0__3)) = add_any_5_w_0;
          }
        }
      }
    }
    if (first < 16) {
      #pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int col = l * 512 + tx * 4;
        if (col < 768) {
          Vec<float, 4> p_reduce_sum_81_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            p_reduce_sum_81_partial0_0_w_0.v[lane] = store_as<float>(reduce_sum_81_state_0[l * 4 + lane].f0);
          }
          *reinterpret_cast<Vec<float, 4>*>(p_reduce_sum_81_partial0_0 + (first * 768 + col)) = p_reduce_sum_81_partial0_0_w_0;
        }
      }
    }
    if (first < 16) {
      #pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int col = l * 512 + tx * 4;
        if (col < 768) {
          Vec<float, 4> p_reduce_sum_79_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            p_reduce_sum_79_partial0_0_w_0.v[lane] = store_as<float>(reduce_sum_79_state_0[l * 4 + lane].f0);
          }
          *reinterpret_cast<Vec<float, 4>*>(p_reduce_sum_79_partial0_0 + (first * 768 + col)) = p_reduce_sum_79_partial0_0_w_0;
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.81, %reduce_sum.79 before level 1
  {  // loop 1: outer 1 / 1 threads, row 16 / 2 threads x 8, col 768 / 64 threads x 1 x 1; 12 tasks; column-reduce: 2 rows x 64 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = threadIdx.x / 64;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 12) {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_81_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_81_state_0__1[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 8; ++turn) {
        const int k = turn;
        const int row = k * 2 + ty;
        {
          const int l = 0;
          const int col = l * 64 + tx + col_tile * 64;
          const int at_0__4 = row * 768 + col;
          reduce_sum_81_state_0__1[l] = Reduce0::combine(reduce_sum_81_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_sum_81_partial0_0[at_0__4])});
        }
      }
      reduce_strided<Reduce0, 2, 64, 128, 4, false, false>(reduce_sum_81_state_0__1, exchange_0_0__1);
      {
        const int l = 0;
        const int col = l * 64 + tx + col_tile * 64;
        const float reduce_sum_81 = reduce_sum_81_state_0__1[l].f0;
        if (ty < 1) {
          p_reduce_sum_81[col] = store_as<float>(reduce_sum_81);
        }
      }
    }
  }
  __syncthreads();  // the next task loop takes over the shared memory
  {  // loop 2: outer 1 / 1 threads, row 16 / 2 threads x 8, col 768 / 64 threads x 1 x 1; 12 tasks; column-reduce: 2 rows x 64 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = threadIdx.x / 64;
    const int to = 0;
    const int first = blockIdx.x - 12 + (blockIdx.x < 12 ? gridDim.x : 0);
    if (first < 12) {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_79_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_79_state_0__1[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 8; ++turn) {
        const int k = turn;
        const int row = k * 2 + ty;
        {
          const int l = 0;
          const int col = l * 64 + tx + col_tile * 64;
          const int at_0__5 = row * 768 + col;
          reduce_sum_79_state_0__1[l] = Reduce0::combine(reduce_sum_79_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_sum_79_partial0_0[at_0__5])});
        }
      }
      reduce_strided<Reduce0, 2, 64, 128, 4, false, false>(reduce_sum_79_state_0__1, exchange_0_0__2);
      {
        const int l = 0;
        const int col = l * 64 + tx + col_tile * 64;
        const float reduce_sum_79 = reduce_sum_79_state_0__1[l].f0;
        if (ty < 1) {
          p_reduce_sum_79[col] = store_as<float>(reduce_sum_79);
        }
      }
    }
  }
}
