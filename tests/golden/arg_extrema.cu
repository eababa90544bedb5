#include "astitch.cuh"
// stitch_0: grid 96 x 256 threads, 8448 B shared
//   reduce
struct Reduce0 {
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
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_NONE;
  struct State { int f0; int f1; };
  static __device__ __forceinline__ State identity() { return State{(-2147483647 - 1), 0}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const bool v4 = hlo_compare_gt(a.f0, b.f0);
    const int v5 = (v4 ? a.f0 : b.f0);
    const bool v6 = hlo_compare_eq(a.f0, b.f0);
    const bool v7 = hlo_compare_lt(a.f1, b.f1);
    const bool v8 = hlo_and(v6, v7);
    const bool v9 = hlo_or(v4, v8);
    const int v10 = (v9 ? a.f1 : b.f1);
    return State{v5, v10};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask)};
  }
};
struct Reduce3 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_NONE;
  struct State { int f0; int f1; };
  static __device__ __forceinline__ State identity() { return State{2147483647, 0}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const bool v4 = hlo_compare_lt(a.f0, b.f0);
    const int v5 = (v4 ? a.f0 : b.f0);
    const bool v6 = hlo_compare_eq(a.f0, b.f0);
    const bool v7 = hlo_compare_lt(a.f1, b.f1);
    const bool v8 = hlo_and(v6, v7);
    const bool v9 = hlo_or(v4, v8);
    const int v10 = (v9 ? a.f1 : b.f1);
    return State{v5, v10};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    const int* __restrict__ p_ties_1,
    int* __restrict__ p_reduce_11_1,
    int* __restrict__ p_reduce_53_1,
    int* __restrict__ p_reduce_25_1,
    int* __restrict__ p_reduce_39_1,
    int* __restrict__ p_reduce_67_1,
    int* __restrict__ p_reduce_81_1,
    int* __restrict__ p_reduce_95_1,
    int* __restrict__ p_reduce_137_1,
    int* __restrict__ p_reduce_109_1,
    int* __restrict__ p_reduce_123_1,
    int* __restrict__ p_reduce_151_1,
    int* __restrict__ p_reduce_165_1) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(8448);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 528);
  ASTITCH_SHARED(Reduce1::State, exchange_1_1, 4224, 528);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 528);
  ASTITCH_SHARED(Reduce1::State, exchange_1_1__1, 4224, 528);
  ASTITCH_SHARED(Reduce2::State, exchange_2_0, 0, 528);
  ASTITCH_SHARED(Reduce3::State, exchange_3_1, 4224, 528);
  ASTITCH_SHARED(Reduce2::State, exchange_2_0__1, 0, 528);
  ASTITCH_SHARED(Reduce3::State, exchange_3_1__1, 4224, 528);
  if (blockIdx.x < 48) {
    {  // loop 0: outer 1 / 1 threads, row 24 / 8 threads x 3, col 30x50 / 32 threads x 1 x 2; 24 tasks; column-reduce: 8 rows x 32 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 32;
      const int ty = threadIdx.x / 32;
      const int to = 0;
      const int first = blockIdx.x;
      if (first < 24) {
        const int task = first;
        const int col_tile = task;
        Reduce0::State reduce_11_state_0[2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) reduce_11_state_0[i] = Reduce0::identity();
        Reduce1::State reduce_53_state_0[2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) reduce_53_state_0[i] = Reduce1::identity();
        #pragma unroll
        for (int turn = 0; turn < 3; ++turn) {
          const int k = turn;
          const int row = k * 8 + ty;
          const int iota_2 = hlo_convert<int>(row);
          {
            const int l = 0;
            const int col_raw = l * 64 + tx * 2 + col_tile * 64;
            const int col = clamped(col_raw, 1498);
            const int at_0 = row * 1500 + col;
            const Vec<float, 2> x_1_v_0 = *reinterpret_cast<const Vec<float, 2>*>(p_x_1 + (at_0));
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_11_state_0[l * 2 + lane] = Reduce0::combine(reduce_11_state_0[l * 2 + lane], Reduce0::State{x_1, iota_2});
              reduce_53_state_0[l * 2 + lane] = Reduce1::combine(reduce_53_state_0[l * 2 + lane], Reduce1::State{x_1, iota_2});
            }
          }
        }
        reduce_strided<Reduce0, 8, 32, 256, 4, true, true>(reduce_11_state_0, exchange_0_0);
        reduce_strided<Reduce1, 8, 32, 256, 4, true, true>(reduce_53_state_0, exchange_1_1);
        {
          const int l = 0;
          const int col = l * 64 + tx * 2 + col_tile * 64;
          if (col < 1500) {
            Vec<int, 2> reduce_11_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int reduce_11 = reduce_11_state_0[l * 2 + lane].f1;
              reduce_11_1_w_0.v[lane] = store_as<int>(reduce_11);
            }
            if (ty < 1) {
              *reinterpret_cast<Vec<int, 2>*>(p_reduce_11_1 + (col)) = reduce_11_1_w_0;
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 64 + tx * 2 + col_tile * 64;
          if (col < 1500) {
            Vec<int, 2> reduce_53_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int reduce_53 = reduce_53_state_0[l * 2 + lane].f1;
              reduce_53_1_w_0.v[lane] = store_as<int>(reduce_53);
            }
            if (ty < 1) {
              *reinterpret_cast<Vec<int, 2>*>(p_reduce_53_1 + (col)) = reduce_53_1_w_0;
            }
          }
        }
      }
    }
    {  // loop 1: outer 24 / 1 threads, row 30 / 8 threads x 4, col 50 / 32 threads x 1 x 2; 24 tasks; column-reduce: 8 rows x 32 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 32;
      const int ty = threadIdx.x / 32;
      const int to = 0;
      const int first = int(blockIdx.x) - 24;
      if (first >= 0 && first < 24) {
        const int task = first;
        const int outer = task;
        Reduce0::State reduce_25_state_0[2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) reduce_25_state_0[i] = Reduce0::identity();
        Reduce0::State reduce_39_state_0[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) reduce_39_state_0[i] = Reduce0::identity();
        Reduce1::State reduce_67_state_0[2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) reduce_67_state_0[i] = Reduce1::identity();
        Reduce1::State reduce_81_state_0[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) reduce_81_state_0[i] = Reduce1::identity();
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = k * 8 + ty;
          if (row < 30) {
            const int iota_6 = hlo_convert<int>(row);
            {
              const int l = 0;
              const int col = l * 64 + tx * 2;
              if (col < 50) {
                const int at_0__1 = outer * 1500 + row * 50 + col;
                const Vec<float, 2> x_1_v_0__1 = *reinterpret_cast<const Vec<float, 2>*>(p_x_1 + (at_0__1));
                #pragma unroll
                for (int lane = 0; lane < 2; ++lane) {
                  const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
                  reduce_25_state_0[l * 2 + lane] = Reduce0::combine(reduce_25_state_0[l * 2 + lane], Reduce0::State{x_1__1, iota_6});
                  const int iota_10 = hlo_convert<int>(col + lane);
                  reduce_39_state_0[k] = Reduce0::combine(reduce_39_state_0[k], Reduce0::State{x_1__1, iota_10});
                  reduce_67_state_0[l * 2 + lane] = Reduce1::combine(reduce_67_state_0[l * 2 + lane], Reduce1::State{x_1__1, iota_6});
                  reduce_81_state_0[k] = Reduce1::combine(reduce_81_state_0[k], Reduce1::State{x_1__1, iota_10});
                }
              }
            }
          }
        }
        reduce_strided<Reduce0, 8, 32, 256, 4, true, true>(reduce_25_state_0, exchange_0_0__1);
        reduce_strided<Reduce1, 8, 32, 256, 4, true, true>(reduce_67_state_0, exchange_1_1__1);
        reduce_lanes<Reduce0, 32, 1>(reduce_39_state_0);
        reduce_lanes<Reduce1, 32, 1>(reduce_81_state_0);
        {
          const int l = 0;
          const int col = l * 64 + tx * 2;
          if (col < 50) {
            const int at_0__2 = outer * 50 + col;
            Vec<int, 2> reduce_25_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int reduce_25 = reduce_25_state_0[l * 2 + lane].f1;
              reduce_25_1_w_0.v[lane] = store_as<int>(reduce_25);
            }
            if (ty < 1) {
              *reinterpret_cast<Vec<int, 2>*>(p_reduce_25_1 + (at_0__2)) = reduce_25_1_w_0;
            }
          }
        }
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = k * 8 + ty;
          if (row < 30) {
            const int reduce_39 = reduce_39_state_0[k].f1;
            const int at_0__3 = outer * 30 + row;
            if (tx < 1) {
              p_reduce_39_1[at_0__3] = store_as<int>(reduce_39);
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 64 + tx * 2;
          if (col < 50) {
            const int at_0__4 = outer * 50 + col;
            Vec<int, 2> reduce_67_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int reduce_67 = reduce_67_state_0[l * 2 + lane].f1;
              reduce_67_1_w_0.v[lane] = store_as<int>(reduce_67);
            }
            if (ty < 1) {
              *reinterpret_cast<Vec<int, 2>*>(p_reduce_67_1 + (at_0__4)) = reduce_67_1_w_0;
            }
          }
        }
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = k * 8 + ty;
          if (row < 30) {
            const int reduce_81 = reduce_81_state_0[k].f1;
            const int at_0__5 = outer * 30 + row;
            if (tx < 1) {
              p_reduce_81_1[at_0__5] = store_as<int>(reduce_81);
            }
          }
        }
      }
    }
  } else {
    {  // loop 2: outer 1 / 1 threads, row 24 / 8 threads x 3, col 30x50 / 32 threads x 1 x 2; 24 tasks; column-reduce: 8 rows x 32 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 32;
      const int ty = threadIdx.x / 32;
      const int to = 0;
      const int first = int(blockIdx.x) - 48;
      if (first >= 0 && first < 24) {
        const int task = first;
        const int col_tile = task;
        Reduce2::State reduce_95_state_0[2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) reduce_95_state_0[i] = Reduce2::identity();
        Reduce3::State reduce_137_state_0[2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) reduce_137_state_0[i] = Reduce3::identity();
        #pragma unroll
        for (int turn = 0; turn < 3; ++turn) {
          const int k = turn;
          const int row = k * 8 + ty;
          const int iota_2__1 = hlo_convert<int>(row);
          {
            const int l = 0;
            const int col_raw = l * 64 + tx * 2 + col_tile * 64;
            const int col = clamped(col_raw, 1498);
            const int at_0__6 = row * 1500 + col;
            const Vec<int, 2> ties_1_v_0 = *reinterpret_cast<const Vec<int, 2>*>(p_ties_1 + (at_0__6));
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int ties_1 = load_as<int>(ties_1_v_0.v[lane]);
              reduce_95_state_0[l * 2 + lane] = Reduce2::combine(reduce_95_state_0[l * 2 + lane], Reduce2::State{ties_1, iota_2__1});
              reduce_137_state_0[l * 2 + lane] = Reduce3::combine(reduce_137_state_0[l * 2 + lane], Reduce3::State{ties_1, iota_2__1});
            }
          }
        }
        reduce_strided<Reduce2, 8, 32, 256, 4, true, true>(reduce_95_state_0, exchange_2_0);
        reduce_strided<Reduce3, 8, 32, 256, 4, true, true>(reduce_137_state_0, exchange_3_1);
        {
          const int l = 0;
          const int col = l * 64 + tx * 2 + col_tile * 64;
          if (col < 1500) {
            Vec<int, 2> reduce_95_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int reduce_95 = reduce_95_state_0[l * 2 + lane].f1;
              reduce_95_1_w_0.v[lane] = store_as<int>(reduce_95);
            }
            if (ty < 1) {
              *reinterpret_cast<Vec<int, 2>*>(p_reduce_95_1 + (col)) = reduce_95_1_w_0;
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 64 + tx * 2 + col_tile * 64;
          if (col < 1500) {
            Vec<int, 2> reduce_137_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int reduce_137 = reduce_137_state_0[l * 2 + lane].f1;
              reduce_137_1_w_0.v[lane] = store_as<int>(reduce_137);
            }
            if (ty < 1) {
              *reinterpret_cast<Vec<int, 2>*>(p_reduce_137_1 + (col)) = reduce_137_1_w_0;
            }
          }
        }
      }
    }
    {  // loop 3: outer 24 / 1 threads, row 30 / 8 threads x 4, col 50 / 32 threads x 1 x 2; 24 tasks; column-reduce: 8 rows x 32 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 32;
      const int ty = threadIdx.x / 32;
      const int to = 0;
      const int first = int(blockIdx.x) - 72;
      if (first >= 0) {
        const int task = first;
        const int outer = task;
        Reduce2::State reduce_109_state_0[2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) reduce_109_state_0[i] = Reduce2::identity();
        Reduce2::State reduce_123_state_0[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) reduce_123_state_0[i] = Reduce2::identity();
        Reduce3::State reduce_151_state_0[2];
        #pragma unroll
        for (int i = 0; i < 2; ++i) reduce_151_state_0[i] = Reduce3::identity();
        Reduce3::State reduce_165_state_0[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) reduce_165_state_0[i] = Reduce3::identity();
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = k * 8 + ty;
          if (row < 30) {
            const int iota_6__1 = hlo_convert<int>(row);
            {
              const int l = 0;
              const int col = l * 64 + tx * 2;
              if (col < 50) {
                const int at_0__7 = outer * 1500 + row * 50 + col;
                const Vec<int, 2> ties_1_v_0__1 = *reinterpret_cast<const Vec<int, 2>*>(p_ties_1 + (at_0__7));
                #pragma unroll
                for (int lane = 0; lane < 2; ++lane) {
                  const int ties_1__1 = load_as<int>(ties_1_v_0__1.v[lane]);
                  reduce_109_state_0[l * 2 + lane] = Reduce2::combine(reduce_109_state_0[l * 2 + lane], Reduce2::State{ties_1__1, iota_6__1});
                  const int iota_10__1 = hlo_convert<int>(col + lane);
                  reduce_123_state_0[k] = Reduce2::combine(reduce_123_state_0[k], Reduce2::State{ties_1__1, iota_10__1});
                  reduce_151_state_0[l * 2 + lane] = Reduce3::combine(reduce_151_state_0[l * 2 + lane], Reduce3::State{ties_1__1, iota_6__1});
                  reduce_165_state_0[k] = Reduce3::combine(reduce_165_state_0[k], Reduce3::State{ties_1__1, iota_10__1});
                }
              }
            }
          }
        }
        reduce_strided<Reduce2, 8, 32, 256, 4, true, true>(reduce_109_state_0, exchange_2_0__1);
        reduce_strided<Reduce3, 8, 32, 256, 4, true, true>(reduce_151_state_0, exchange_3_1__1);
        reduce_lanes<Reduce2, 32, 1>(reduce_123_state_0);
        reduce_lanes<Reduce3, 32, 1>(reduce_165_state_0);
        {
          const int l = 0;
          const int col = l * 64 + tx * 2;
          if (col < 50) {
            const int at_0__8 = outer * 50 + col;
            Vec<int, 2> reduce_109_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int reduce_109 = reduce_109_state_0[l * 2 + lane].f1;
              reduce_109_1_w_0.v[lane] = store_as<int>(reduce_109);
            }
            if (ty < 1) {
              *reinterpret_cast<Vec<int, 2>*>(p_reduce_109_1 + (at_0__8)) = reduce_109_1_w_0;
            }
          }
        }
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = k * 8 + ty;
          if (row < 30) {
            const int reduce_123 = reduce_123_state_0[k].f1;
            const int at_0__9 = outer * 30 + row;
            if (tx < 1) {
              p_reduce_123_1[at_0__9] = store_as<int>(reduce_123);
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 64 + tx * 2;
          if (col < 50) {
            const int at_0__10 = outer * 50 + col;
            Vec<int, 2> reduce_151_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int reduce_151 = reduce_151_state_0[l * 2 + lane].f1;
              reduce_151_1_w_0.v[lane] = store_as<int>(reduce_151);
            }
            if (ty < 1) {
              *reinterpret_cast<Vec<int, 2>*>(p_reduce_151_1 + (at_0__10)) = reduce_151_1_w_0;
            }
          }
        }
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = k * 8 + ty;
          if (row < 30) {
            const int reduce_165 = reduce_165_state_0[k].f1;
            const int at_0__11 = outer * 30 + row;
            if (tx < 1) {
              p_reduce_165_1[at_0__11] = store_as<int>(reduce_165);
            }
          }
        }
      }
    }
  }
}
