#include "astitch.cuh"
// stitch_0: grid 4 x 512 threads, 13792 B shared
//   jit(reductions_with_nan)/reduce_sum
//   jit(reductions_with_nan)/reduce_max
//   jit(reductions_with_nan)/reduce_min
//   reduce
//   jit(reductions_with_nan)/ne
//   jit(reductions_with_nan)/reduce_or
//   jit(reductions_with_nan)/is_finite
//   jit(reductions_with_nan)/reduce_and
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0x7f800000u)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_minimum(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce1 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; int f1; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0x7f800000u), 0}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const bool v4 = hlo_compare_lt(a.f0, b.f0);
    const bool v5 = hlo_compare_ne(a.f0, a.f0);
    const bool v6 = hlo_or(v4, v5);
    const float v7 = (v6 ? a.f0 : b.f0);
    const bool v8 = hlo_compare_eq(a.f0, b.f0);
    const bool v9 = hlo_compare_lt(a.f1, b.f1);
    const bool v10 = hlo_and(v8, v9);
    const bool v11 = hlo_or(v6, v10);
    const int v12 = (v11 ? a.f1 : b.f1);
    return State{v7, v12};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask)};
  }
};
struct Reduce2 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { bool f0; };
  static __device__ __forceinline__ State identity() { return State{true}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const bool v2 = hlo_and(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce3 {
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
struct Reduce4 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_maximum(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce5 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; int f1; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u), 0}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const bool v4 = hlo_compare_gt(a.f0, b.f0);
    const bool v5 = hlo_compare_ne(a.f0, a.f0);
    const bool v6 = hlo_or(v4, v5);
    const float v7 = (v6 ? a.f0 : b.f0);
    const bool v8 = hlo_compare_eq(a.f0, b.f0);
    const bool v9 = hlo_compare_lt(a.f1, b.f1);
    const bool v10 = hlo_and(v8, v9);
    const bool v11 = hlo_or(v6, v10);
    const int v12 = (v11 ? a.f1 : b.f1);
    return State{v7, v12};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask)};
  }
};
struct Reduce6 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { bool f0; };
  static __device__ __forceinline__ State identity() { return State{false}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const bool v2 = hlo_or(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce7 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_maximum(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce8 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0x7f800000u)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_minimum(a.f0, b.f0);
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
    const f16* __restrict__ p_h_1,
    float* __restrict__ p_reduce_sum_7,
    float* __restrict__ p_reduce_max_14,
    int* __restrict__ p_reduce_11_1,
    bool* __restrict__ p_reduce_or_7,
    f16* __restrict__ p_reduce_min_15,
    float* __restrict__ p_reduce_min_14,
    int* __restrict__ p_reduce_25_1,
    f16* __restrict__ p_reduce_max_15,
    bool* __restrict__ p_reduce_and_7,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_reduce_min_14_partial0_0 = reinterpret_cast<float*>(scratch + 0);
  float* const p_reduce_25_partial0_0 = reinterpret_cast<float*>(scratch + 768);
  int* const p_reduce_25_partial1_0 = reinterpret_cast<int*>(scratch + 1536);
  bool* const p_reduce_and_7_partial0_0 = reinterpret_cast<bool*>(scratch + 2304);
  f16* const p_reduce_max_15_partial0_0 = reinterpret_cast<f16*>(scratch + 2560);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(13792);
  ASTITCH_SHARED(Reduce3::State, exchange_3_0, 13648, 16);
  ASTITCH_SHARED(Reduce4::State, exchange_4_0, 13712, 16);
  ASTITCH_SHARED(Reduce5::State, exchange_5_0, 13520, 16);
  ASTITCH_SHARED(Reduce6::State, exchange_6_0, 13776, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 8320, 1040);
  ASTITCH_SHARED(Reduce1::State, exchange_1_0, 0, 1040);
  ASTITCH_SHARED(Reduce2::State, exchange_2_1, 12480, 1040);
  ASTITCH_SHARED(Reduce8::State, exchange_8_0, 4160, 16);
  ASTITCH_SHARED(Reduce7::State, exchange_7_1, 0, 1040);
  {  // loop 0: outer 16 / 8 threads, row 1 / 1 threads x 1, col 90 / 64 threads x 1 x 2; 2 tasks; row-reduce: 8 rows a block, 64 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = blockIdx.x;
    Reduce0::State reduce_min_14_state_0[2];
    #pragma unroll
    for (int i = 0; i < 2; ++i) reduce_min_14_state_0[i] = Reduce0::identity();
    Reduce1::State reduce_25_state_0[2];
    #pragma unroll
    for (int i = 0; i < 2; ++i) reduce_25_state_0[i] = Reduce1::identity();
    Reduce2::State reduce_and_7_state_0[2];
    #pragma unroll
    for (int i = 0; i < 2; ++i) reduce_and_7_state_0[i] = Reduce2::identity();
    if (first < 2) {
      const int task = first;
      const int outer = task * 8 + to;
      Reduce3::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce3::identity();
      Reduce4::State reduce_max_14_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_14_state_0[i] = Reduce4::identity();
      Reduce5::State reduce_11_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_11_state_0[i] = Reduce5::identity();
      Reduce6::State reduce_or_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_or_7_state_0[i] = Reduce6::identity();
      const int iota_6 = hlo_convert<int>(outer);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 128 + tx * 2;
          if (col < 90) {
            const int at_0 = outer * 90 + col;
            const Vec<float, 2> x_1_v_0 = *reinterpret_cast<const Vec<float, 2>*>(p_x_1 + (at_0));
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_sum_7_state_0[0] = Reduce3::combine(reduce_sum_7_state_0[0], Reduce3::State{x_1});
              reduce_max_14_state_0[0] = Reduce4::combine(reduce_max_14_state_0[0], Reduce4::State{x_1});
              reduce_min_14_state_0[l * 2 + lane] = Reduce0::combine(reduce_min_14_state_0[l * 2 + lane], Reduce0::State{x_1});
              const int iota_2 = hlo_convert<int>(col + lane);
              reduce_11_state_0[0] = Reduce5::combine(reduce_11_state_0[0], Reduce5::State{x_1, iota_2});
              reduce_25_state_0[l * 2 + lane] = Reduce1::combine(reduce_25_state_0[l * 2 + lane], Reduce1::State{x_1, iota_6});
              const bool ne_5 = hlo_compare_ne(x_1, x_1);
              reduce_or_7_state_0[0] = Reduce6::combine(reduce_or_7_state_0[0], Reduce6::State{ne_5});
              const bool is_finite_1 = hlo_is_finite(x_1);
              reduce_and_7_state_0[l * 2 + lane] = Reduce2::combine(reduce_and_7_state_0[l * 2 + lane], Reduce2::State{is_finite_1});
            }
          }
        }
      }
      reduce_warps<Reduce3>(reduce_sum_7_state_0, exchange_3_0);
      reduce_warps<Reduce4>(reduce_max_14_state_0, exchange_4_0);
      reduce_warps<Reduce5>(reduce_11_state_0, exchange_5_0);
      reduce_warps<Reduce6>(reduce_or_7_state_0, exchange_6_0);
      __syncthreads();
      combine_warps<Reduce3, 64, false>(reduce_sum_7_state_0, exchange_3_0);
      combine_warps<Reduce4, 64, false>(reduce_max_14_state_0, exchange_4_0);
      combine_warps<Reduce5, 64, false>(reduce_11_state_0, exchange_5_0);
      combine_warps<Reduce6, 64, false>(reduce_or_7_state_0, exchange_6_0);
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      if (tx < 1) {
        p_reduce_sum_7[outer] = store_as<float>(reduce_sum_7);
      }
      const float reduce_max_14 = reduce_max_14_state_0[0].f0;
      if (tx < 1) {
        p_reduce_max_14[outer] = store_as<float>(reduce_max_14);
      }
      const int reduce_11 = reduce_11_state_0[0].f1;
      if (tx < 1) {
        p_reduce_11_1[outer] = store_as<int>(reduce_11);
      }
      const bool reduce_or_7 = reduce_or_7_state_0[0].f0;
      if (tx < 1) {
        p_reduce_or_7[outer] = store_as<bool>(reduce_or_7);
      }
    }
    reduce_strided<Reduce0, 8, 64, 512, 4, false, false>(reduce_min_14_state_0, exchange_0_1);
    reduce_strided<Reduce1, 8, 64, 512, 4, true, false>(reduce_25_state_0, exchange_1_0);
    reduce_strided<Reduce2, 8, 64, 512, 4, false, false>(reduce_and_7_state_0, exchange_2_1);
    if (first < 2) {
      {
        const int l = 0;
        const int col = l * 128 + tx * 2;
        if (col < 90) {
          Vec<float, 2> p_reduce_min_14_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 2; ++lane) {
            p_reduce_min_14_partial0_0_w_0.v[lane] = store_as<float>(reduce_min_14_state_0[l * 2 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<float, 2>*>(p_reduce_min_14_partial0_0 + (first * 90 + col)) = p_reduce_min_14_partial0_0_w_0;
          }
        }
      }
    }
    if (first < 2) {
      {
        const int l = 0;
        const int col = l * 128 + tx * 2;
        if (col < 90) {
          Vec<float, 2> p_reduce_25_partial0_0_w_0;
          Vec<int, 2> p_reduce_25_partial1_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 2; ++lane) {
            p_reduce_25_partial0_0_w_0.v[lane] = store_as<float>(reduce_25_state_0[l * 2 + lane].f0);
            p_reduce_25_partial1_0_w_0.v[lane] = store_as<int>(reduce_25_state_0[l * 2 + lane].f1);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<float, 2>*>(p_reduce_25_partial0_0 + (first * 90 + col)) = p_reduce_25_partial0_0_w_0;
          }
          if (to < 1) {
            *reinterpret_cast<Vec<int, 2>*>(p_reduce_25_partial1_0 + (first * 90 + col)) = p_reduce_25_partial1_0_w_0;
          }
        }
      }
    }
    if (first < 2) {
      {
        const int l = 0;
        const int col = l * 128 + tx * 2;
        if (col < 90) {
          Vec<bool, 2> p_reduce_and_7_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 2; ++lane) {
            p_reduce_and_7_partial0_0_w_0.v[lane] = store_as<bool>(reduce_and_7_state_0[l * 2 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<bool, 2>*>(p_reduce_and_7_partial0_0 + (first * 90 + col)) = p_reduce_and_7_partial0_0_w_0;
          }
        }
      }
    }
  }
  __syncthreads();  // the next task loop takes over the shared memory
  {  // loop 1: outer 16 / 8 threads, row 1 / 1 threads x 1, col 90 / 64 threads x 1 x 2; 2 tasks; row-reduce: 8 rows a block, 64 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = blockIdx.x - 2 + (blockIdx.x < 2 ? gridDim.x : 0);
    Reduce7::State reduce_max_15_state_0[2];
    #pragma unroll
    for (int i = 0; i < 2; ++i) reduce_max_15_state_0[i] = Reduce7::identity();
    if (first < 2) {
      const int task = first;
      const int outer = task * 8 + to;
      Reduce8::State reduce_min_15_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_min_15_state_0[i] = Reduce8::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 128 + tx * 2;
          if (col < 90) {
            const int at_0__1 = outer * 90 + col;
            const Vec<f16, 2> h_1_v_0 = *reinterpret_cast<const Vec<f16, 2>*>(p_h_1 + (at_0__1));
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const float h_1 = load_as<float>(h_1_v_0.v[lane]);
              reduce_max_15_state_0[l * 2 + lane] = Reduce7::combine(reduce_max_15_state_0[l * 2 + lane], Reduce7::State{h_1});
              reduce_min_15_state_0[0] = Reduce8::combine(reduce_min_15_state_0[0], Reduce8::State{h_1});
            }
          }
        }
      }
      reduce_warps<Reduce8>(reduce_min_15_state_0, exchange_8_0);
      __syncthreads();
      combine_warps<Reduce8, 64, false>(reduce_min_15_state_0, exchange_8_0);
      const float reduce_min_15 = round_to<f16>(reduce_min_15_state_0[0].f0);
      if (tx < 1) {
        p_reduce_min_15[outer] = store_as<f16>(reduce_min_15);
      }
    }
    reduce_strided<Reduce7, 8, 64, 512, 4, false, false>(reduce_max_15_state_0, exchange_7_1);
    if (first < 2) {
      {
        const int l = 0;
        const int col = l * 128 + tx * 2;
        if (col < 90) {
          Vec<f16, 2> p_reduce_max_15_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 2; ++lane) {
            p_reduce_max_15_partial0_0_w_0.v[lane] = store_as<f16>(reduce_max_15_state_0[l * 2 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<f16, 2>*>(p_reduce_max_15_partial0_0 + (first * 90 + col)) = p_reduce_max_15_partial0_0_w_0;
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce.25, %reduce_and.7, %reduce_max.15 before level 1
  if (blockIdx.x < 2) {
    {  // loop 2: outer 1 / 4 threads, row 2 / 1 threads x 2, col 90 / 128 threads x 1 x 1; 1 tasks; column-reduce: 1 rows x 128 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 128;
      const int ty = 0;
      const int to = threadIdx.x / 128;
      const int first = blockIdx.x;
      if (first < 1) {
        const int task = first;
        Reduce0::State reduce_min_14_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_min_14_state_0__1[i] = Reduce0::identity();
        #pragma unroll
        for (int turn = 0; turn < 2; ++turn) {
          const int k = turn;
          const int row = k + ty;
          {
            const int l = 0;
            const int col_raw = l * 128 + tx;
            const int col = clamped(col_raw, 89);
            const int at_0__2 = row * 90 + col;
            if (to < 1) {
              reduce_min_14_state_0__1[l] = Reduce0::combine(reduce_min_14_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_min_14_partial0_0[at_0__2])});
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 128 + tx;
          if (col < 90) {
            const float reduce_min_14 = reduce_min_14_state_0__1[l].f0;
            if (to < 1) {
              p_reduce_min_14[col] = store_as<float>(reduce_min_14);
            }
          }
        }
      }
    }
    {  // loop 3: outer 1 / 4 threads, row 2 / 1 threads x 2, col 90 / 128 threads x 1 x 1; 1 tasks; column-reduce: 1 rows x 128 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 128;
      const int ty = 0;
      const int to = threadIdx.x / 128;
      const int first = int(blockIdx.x) - 1;
      if (first >= 0 && first < 1) {
        const int task = first;
        Reduce1::State reduce_25_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_25_state_0__1[i] = Reduce1::identity();
        #pragma unroll
        for (int turn = 0; turn < 2; ++turn) {
          const int k = turn;
          const int row = k + ty;
          {
            const int l = 0;
            const int col_raw = l * 128 + tx;
            const int col = clamped(col_raw, 89);
            const int at_0__3 = row * 90 + col;
            if (to < 1) {
              reduce_25_state_0__1[l] = Reduce1::combine(reduce_25_state_0__1[l], Reduce1::State{load_as<float>(p_reduce_25_partial0_0[at_0__3]), load_as<int>(p_reduce_25_partial1_0[at_0__3])});
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 128 + tx;
          if (col < 90) {
            const int reduce_25 = reduce_25_state_0__1[l].f1;
            if (to < 1) {
              p_reduce_25_1[col] = store_as<int>(reduce_25);
            }
          }
        }
      }
    }
  } else {
    {  // loop 4: outer 1 / 4 threads, row 2 / 1 threads x 2, col 90 / 128 threads x 1 x 1; 1 tasks; column-reduce: 1 rows x 128 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 128;
      const int ty = 0;
      const int to = threadIdx.x / 128;
      const int first = int(blockIdx.x) - 2;
      if (first >= 0 && first < 1) {
        const int task = first;
        Reduce7::State reduce_max_15_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_max_15_state_0__1[i] = Reduce7::identity();
        #pragma unroll
        for (int turn = 0; turn < 2; ++turn) {
          const int k = turn;
          const int row = k + ty;
          {
            const int l = 0;
            const int col_raw = l * 128 + tx;
            const int col = clamped(col_raw, 89);
            const int at_0__4 = row * 90 + col;
            if (to < 1) {
              reduce_max_15_state_0__1[l] = Reduce7::combine(reduce_max_15_state_0__1[l], Reduce7::State{load_as<float>(p_reduce_max_15_partial0_0[at_0__4])});
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 128 + tx;
          if (col < 90) {
            const float reduce_max_15 = round_to<f16>(reduce_max_15_state_0__1[l].f0);
            if (to < 1) {
              p_reduce_max_15[col] = store_as<f16>(reduce_max_15);
            }
          }
        }
      }
    }
    {  // loop 5: outer 1 / 4 threads, row 2 / 1 threads x 2, col 90 / 128 threads x 1 x 1; 1 tasks; column-reduce: 1 rows x 128 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 128;
      const int ty = 0;
      const int to = threadIdx.x / 128;
      const int first = int(blockIdx.x) - 3;
      if (first >= 0) {
        const int task = first;
        Reduce2::State reduce_and_7_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_and_7_state_0__1[i] = Reduce2::identity();
        #pragma unroll
        for (int turn = 0; turn < 2; ++turn) {
          const int k = turn;
          const int row = k + ty;
          {
            const int l = 0;
            const int col_raw = l * 128 + tx;
            const int col = clamped(col_raw, 89);
            const int at_0__5 = row * 90 + col;
            if (to < 1) {
              reduce_and_7_state_0__1[l] = Reduce2::combine(reduce_and_7_state_0__1[l], Reduce2::State{load_as<bool>(p_reduce_and_7_partial0_0[at_0__5])});
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 128 + tx;
          if (col < 90) {
            const bool reduce_and_7 = reduce_and_7_state_0__1[l].f0;
            if (to < 1) {
              p_reduce_and_7[col] = store_as<bool>(reduce_and_7);
            }
          }
        }
      }
    }
  }
}
