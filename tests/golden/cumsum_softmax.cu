#include "astitch.cuh"
// stitch_0: grid 8 x 256 threads, 8064 B shared
//   jit(cumsum_softmax)/reduce_max
//   jit(cumsum_softmax)/sub
//   jit(cumsum_softmax)/exp
//   jit(cumsum_softmax)/reduce_sum
//   jit(cumsum_softmax)/div
//   reduce_window_sum
struct Reduce0 {
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
struct Reduce1 {
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
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_reduce_window_sum_7_add_10) {
  ASTITCH_SHARED_ARENA(8064);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 8000, 8);
  ASTITCH_SHARED(Reduce1::State, exchange_1_1, 8032, 8);
  ASTITCH_SHARED(float, reduce_window_sum_7_add_shared_0, 0, 1000);
  ASTITCH_SHARED(float, reduce_window_sum_7_add_6_shared_0, 4000, 1000);
  {  // loop 0: outer 8 / 1 threads, row 1 / 1 threads x 1, col 1000 / 256 threads x 1 x 4; 8 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = thread % 256;
    const int ty = thread / 256 % 1;
    const int to = thread / 256;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[1];
    float exp_1_kept_0[4];
    float reduce_window_sum_7_add_kept_0[4];
    float reduce_window_sum_7_add_6_kept_0[4];
    if (first < 8) {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const int at_0 = outer * 1000 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            x_1_kept_0[k + l] = to_words(x_1_v_0);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_max_7_state_0[0] = Reduce0::combine(reduce_max_7_state_0[0], Reduce0::State{x_1});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_max_7_state_0, exchange_0_0);
      Reduce1::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce1::identity();
      const float reduce_max_7 = reduce_max_7_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float sub_7 = hlo_subtract(x_1__1, reduce_max_7);
              const float exp_1 = hlo_exp(sub_7);
              exp_1_kept_0[k * 4 + l * 4 + lane] = exp_1;
              reduce_sum_7_state_0[0] = Reduce1::combine(reduce_sum_7_state_0[0], Reduce1::State{exp_1});
            }
          }
        }
      }
      reduce_warps<Reduce1>(reduce_sum_7_state_0, exchange_1_1);
      __syncthreads();
      combine_warps<Reduce1, 256, false>(reduce_sum_7_state_0, exchange_1_1);
      const float reduce_sum_7__1 = reduce_sum_7_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              float reduce_window_sum_7_pad_0;
              if (col + lane - 1 >= 0 && col + lane - 1 < 1000) {
                const int at_0__1 = outer * 1000 + col - 1;
                const float x_1__2 = load_as<float>(p_x_1[at_0__1 + lane]);
                const float sub_7__1 = hlo_subtract(x_1__2, reduce_max_7);
                const float exp_1__1 = hlo_exp(sub_7__1);
                const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
                const float div_7 = hlo_divide_shared(exp_1__1, reduce_sum_7);
                reduce_window_sum_7_pad_0 = div_7;
              } else {
                reduce_window_sum_7_pad_0 = 0.0f;
              }
              const float exp_1__2 = exp_1_kept_0[k * 4 + l * 4 + lane];
              const float div_7__1 = hlo_divide_shared(exp_1__2, reduce_sum_7__1);
              const float reduce_window_sum_7_add_0 = hlo_add(reduce_window_sum_7_pad_0, div_7__1);
              reduce_window_sum_7_add_kept_0[k * 4 + l * 4 + lane] = reduce_window_sum_7_add_0;
              reduce_window_sum_7_add_shared_0[col + lane + to * 1000] = store_as<float>(reduce_window_sum_7_add_0);
            }
          }
        }
      }
      __syncthreads();  // Regional: %reduce_window_sum.7.add is read by other threads of the block
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            float reduce_window_sum_7_pad_6_lanes_0[4];
            if (col - 32 >= 0) {
              float reduce_window_sum_7_pad_5_lanes_0[4];
              if (col - 48 >= 0) {
                float reduce_window_sum_7_pad_4_lanes_0[4];
                if (col - 56 >= 0) {
                  float reduce_window_sum_7_pad_3_lanes_0[4];
                  if (col - 60 >= 0) {
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      float reduce_window_sum_7_pad_2;
                      if (col + lane - 62 >= 0 && col + lane - 62 < 1000) {
                        const float reduce_window_sum_7_add_0__1 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 62]);
                        reduce_window_sum_7_pad_2 = reduce_window_sum_7_add_0__1;
                      } else {
                        reduce_window_sum_7_pad_2 = 0.0f;
                      }
                      const float reduce_window_sum_7_add_0__2 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 60]);
                      const float reduce_window_sum_7_add_2 = hlo_add(reduce_window_sum_7_pad_2, reduce_window_sum_7_add_0__2);
                      reduce_window_sum_7_pad_3_lanes_0[lane] = reduce_window_sum_7_add_2;
                    }
                  } else {
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      reduce_window_sum_7_pad_3_lanes_0[lane] = 0.0f;
                    }
                  }
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    float reduce_window_sum_7_pad_2__1;
                    if (col + lane - 58 >= 0 && col + lane - 58 < 1000) {
                      const float reduce_window_sum_7_add_0__3 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 58]);
                      reduce_window_sum_7_pad_2__1 = reduce_window_sum_7_add_0__3;
                    } else {
                      reduce_window_sum_7_pad_2__1 = 0.0f;
                    }
                    const float reduce_window_sum_7_add_0__4 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 56]);
                    const float reduce_window_sum_7_add_2__1 = hlo_add(reduce_window_sum_7_pad_2__1, reduce_window_sum_7_add_0__4);
                    const float reduce_window_sum_7_add_3 = hlo_add(reduce_window_sum_7_pad_3_lanes_0[lane], reduce_window_sum_7_add_2__1);
                    reduce_window_sum_7_pad_4_lanes_0[lane] = reduce_window_sum_7_add_3;
                  }
                } else {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    reduce_window_sum_7_pad_4_lanes_0[lane] = 0.0f;
                  }
                }
                float reduce_window_sum_7_pad_3_lanes_0__1[4];
                if (col - 52 >= 0) {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    float reduce_window_sum_7_pad_2__2;
                    if (col + lane - 54 >= 0 && col + lane - 54 < 1000) {
                      const float reduce_window_sum_7_add_0__5 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 54]);
                      reduce_window_sum_7_pad_2__2 = reduce_window_sum_7_add_0__5;
                    } else {
                      reduce_window_sum_7_pad_2__2 = 0.0f;
                    }
                    const float reduce_window_sum_7_add_0__6 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 52]);
                    const float reduce_window_sum_7_add_2__2 = hlo_add(reduce_window_sum_7_pad_2__2, reduce_window_sum_7_add_0__6);
                    reduce_window_sum_7_pad_3_lanes_0__1[lane] = reduce_window_sum_7_add_2__2;
                  }
                } else {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    reduce_window_sum_7_pad_3_lanes_0__1[lane] = 0.0f;
                  }
                }
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  float reduce_window_sum_7_pad_2__3;
                  if (col + lane - 50 >= 0 && col + lane - 50 < 1000) {
                    const float reduce_window_sum_7_add_0__7 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 50]);
                    reduce_window_sum_7_pad_2__3 = reduce_window_sum_7_add_0__7;
                  } else {
                    reduce_window_sum_7_pad_2__3 = 0.0f;
                  }
                  const float reduce_window_sum_7_add_0__8 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 48]);
                  const float reduce_window_sum_7_add_2__3 = hlo_add(reduce_window_sum_7_pad_2__3, reduce_window_sum_7_add_0__8);
                  const float reduce_window_sum_7_add_3__1 = hlo_add(reduce_window_sum_7_pad_3_lanes_0__1[lane], reduce_window_sum_7_add_2__3);
                  const float reduce_window_sum_7_add_4 = hlo_add(reduce_window_sum_7_pad_4_lanes_0[lane], reduce_window_sum_7_add_3__1);
                  reduce_window_sum_7_pad_5_lanes_0[lane] = reduce_window_sum_7_add_4;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_5_lanes_0[lane] = 0.0f;
                }
              }
              float reduce_window_sum_7_pad_4_lanes_0__1[4];
              if (col - 40 >= 0) {
                float reduce_window_sum_7_pad_3_lanes_0__2[4];
                if (col - 44 >= 0) {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    float reduce_window_sum_7_pad_2__4;
                    if (col + lane - 46 >= 0 && col + lane - 46 < 1000) {
                      const float reduce_window_sum_7_add_0__9 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 46]);
                      reduce_window_sum_7_pad_2__4 = reduce_window_sum_7_add_0__9;
                    } else {
                      reduce_window_sum_7_pad_2__4 = 0.0f;
                    }
                    const float reduce_window_sum_7_add_0__10 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 44]);
                    const float reduce_window_sum_7_add_2__4 = hlo_add(reduce_window_sum_7_pad_2__4, reduce_window_sum_7_add_0__10);
                    reduce_window_sum_7_pad_3_lanes_0__2[lane] = reduce_window_sum_7_add_2__4;
                  }
                } else {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    reduce_window_sum_7_pad_3_lanes_0__2[lane] = 0.0f;
                  }
                }
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  float reduce_window_sum_7_pad_2__5;
                  if (col + lane - 42 >= 0 && col + lane - 42 < 1000) {
                    const float reduce_window_sum_7_add_0__11 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 42]);
                    reduce_window_sum_7_pad_2__5 = reduce_window_sum_7_add_0__11;
                  } else {
                    reduce_window_sum_7_pad_2__5 = 0.0f;
                  }
                  const float reduce_window_sum_7_add_0__12 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 40]);
                  const float reduce_window_sum_7_add_2__5 = hlo_add(reduce_window_sum_7_pad_2__5, reduce_window_sum_7_add_0__12);
                  const float reduce_window_sum_7_add_3__2 = hlo_add(reduce_window_sum_7_pad_3_lanes_0__2[lane], reduce_window_sum_7_add_2__5);
                  reduce_window_sum_7_pad_4_lanes_0__1[lane] = reduce_window_sum_7_add_3__2;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_4_lanes_0__1[lane] = 0.0f;
                }
              }
              float reduce_window_sum_7_pad_3_lanes_0__3[4];
              if (col - 36 >= 0) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  float reduce_window_sum_7_pad_2__6;
                  if (col + lane - 38 >= 0 && col + lane - 38 < 1000) {
                    const float reduce_window_sum_7_add_0__13 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 38]);
                    reduce_window_sum_7_pad_2__6 = reduce_window_sum_7_add_0__13;
                  } else {
                    reduce_window_sum_7_pad_2__6 = 0.0f;
                  }
                  const float reduce_window_sum_7_add_0__14 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 36]);
                  const float reduce_window_sum_7_add_2__6 = hlo_add(reduce_window_sum_7_pad_2__6, reduce_window_sum_7_add_0__14);
                  reduce_window_sum_7_pad_3_lanes_0__3[lane] = reduce_window_sum_7_add_2__6;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_3_lanes_0__3[lane] = 0.0f;
                }
              }
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                float reduce_window_sum_7_pad_2__7;
                if (col + lane - 34 >= 0 && col + lane - 34 < 1000) {
                  const float reduce_window_sum_7_add_0__15 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 34]);
                  reduce_window_sum_7_pad_2__7 = reduce_window_sum_7_add_0__15;
                } else {
                  reduce_window_sum_7_pad_2__7 = 0.0f;
                }
                const float reduce_window_sum_7_add_0__16 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 32]);
                const float reduce_window_sum_7_add_2__7 = hlo_add(reduce_window_sum_7_pad_2__7, reduce_window_sum_7_add_0__16);
                const float reduce_window_sum_7_add_3__3 = hlo_add(reduce_window_sum_7_pad_3_lanes_0__3[lane], reduce_window_sum_7_add_2__7);
                const float reduce_window_sum_7_add_4__1 = hlo_add(reduce_window_sum_7_pad_4_lanes_0__1[lane], reduce_window_sum_7_add_3__3);
                const float reduce_window_sum_7_add_5 = hlo_add(reduce_window_sum_7_pad_5_lanes_0[lane], reduce_window_sum_7_add_4__1);
                reduce_window_sum_7_pad_6_lanes_0[lane] = reduce_window_sum_7_add_5;
              }
            } else {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                reduce_window_sum_7_pad_6_lanes_0[lane] = 0.0f;
              }
            }
            float reduce_window_sum_7_pad_5_lanes_0__1[4];
            if (col - 16 >= 0) {
              float reduce_window_sum_7_pad_4_lanes_0__2[4];
              if (col - 24 >= 0) {
                float reduce_window_sum_7_pad_3_lanes_0__4[4];
                if (col - 28 >= 0) {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    float reduce_window_sum_7_pad_2__8;
                    if (col + lane - 30 >= 0 && col + lane - 30 < 1000) {
                      const float reduce_window_sum_7_add_0__17 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 30]);
                      reduce_window_sum_7_pad_2__8 = reduce_window_sum_7_add_0__17;
                    } else {
                      reduce_window_sum_7_pad_2__8 = 0.0f;
                    }
                    const float reduce_window_sum_7_add_0__18 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 28]);
                    const float reduce_window_sum_7_add_2__8 = hlo_add(reduce_window_sum_7_pad_2__8, reduce_window_sum_7_add_0__18);
                    reduce_window_sum_7_pad_3_lanes_0__4[lane] = reduce_window_sum_7_add_2__8;
                  }
                } else {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    reduce_window_sum_7_pad_3_lanes_0__4[lane] = 0.0f;
                  }
                }
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  float reduce_window_sum_7_pad_2__9;
                  if (col + lane - 26 >= 0 && col + lane - 26 < 1000) {
                    const float reduce_window_sum_7_add_0__19 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 26]);
                    reduce_window_sum_7_pad_2__9 = reduce_window_sum_7_add_0__19;
                  } else {
                    reduce_window_sum_7_pad_2__9 = 0.0f;
                  }
                  const float reduce_window_sum_7_add_0__20 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 24]);
                  const float reduce_window_sum_7_add_2__9 = hlo_add(reduce_window_sum_7_pad_2__9, reduce_window_sum_7_add_0__20);
                  const float reduce_window_sum_7_add_3__4 = hlo_add(reduce_window_sum_7_pad_3_lanes_0__4[lane], reduce_window_sum_7_add_2__9);
                  reduce_window_sum_7_pad_4_lanes_0__2[lane] = reduce_window_sum_7_add_3__4;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_4_lanes_0__2[lane] = 0.0f;
                }
              }
              float reduce_window_sum_7_pad_3_lanes_0__5[4];
              if (col - 20 >= 0) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  float reduce_window_sum_7_pad_2__10;
                  if (col + lane - 22 >= 0 && col + lane - 22 < 1000) {
                    const float reduce_window_sum_7_add_0__21 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 22]);
                    reduce_window_sum_7_pad_2__10 = reduce_window_sum_7_add_0__21;
                  } else {
                    reduce_window_sum_7_pad_2__10 = 0.0f;
                  }
                  const float reduce_window_sum_7_add_0__22 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 20]);
                  const float reduce_window_sum_7_add_2__10 = hlo_add(reduce_window_sum_7_pad_2__10, reduce_window_sum_7_add_0__22);
                  reduce_window_sum_7_pad_3_lanes_0__5[lane] = reduce_window_sum_7_add_2__10;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_3_lanes_0__5[lane] = 0.0f;
                }
              }
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                float reduce_window_sum_7_pad_2__11;
                if (col + lane - 18 >= 0 && col + lane - 18 < 1000) {
                  const float reduce_window_sum_7_add_0__23 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 18]);
                  reduce_window_sum_7_pad_2__11 = reduce_window_sum_7_add_0__23;
                } else {
                  reduce_window_sum_7_pad_2__11 = 0.0f;
                }
                const float reduce_window_sum_7_add_0__24 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 16]);
                const float reduce_window_sum_7_add_2__11 = hlo_add(reduce_window_sum_7_pad_2__11, reduce_window_sum_7_add_0__24);
                const float reduce_window_sum_7_add_3__5 = hlo_add(reduce_window_sum_7_pad_3_lanes_0__5[lane], reduce_window_sum_7_add_2__11);
                const float reduce_window_sum_7_add_4__2 = hlo_add(reduce_window_sum_7_pad_4_lanes_0__2[lane], reduce_window_sum_7_add_3__5);
                reduce_window_sum_7_pad_5_lanes_0__1[lane] = reduce_window_sum_7_add_4__2;
              }
            } else {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                reduce_window_sum_7_pad_5_lanes_0__1[lane] = 0.0f;
              }
            }
            float reduce_window_sum_7_pad_4_lanes_0__3[4];
            if (col - 8 >= 0) {
              float reduce_window_sum_7_pad_3_lanes_0__6[4];
              if (col - 12 >= 0) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  float reduce_window_sum_7_pad_2__12;
                  if (col + lane - 14 >= 0 && col + lane - 14 < 1000) {
                    const float reduce_window_sum_7_add_0__25 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 14]);
                    reduce_window_sum_7_pad_2__12 = reduce_window_sum_7_add_0__25;
                  } else {
                    reduce_window_sum_7_pad_2__12 = 0.0f;
                  }
                  const float reduce_window_sum_7_add_0__26 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 12]);
                  const float reduce_window_sum_7_add_2__12 = hlo_add(reduce_window_sum_7_pad_2__12, reduce_window_sum_7_add_0__26);
                  reduce_window_sum_7_pad_3_lanes_0__6[lane] = reduce_window_sum_7_add_2__12;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_3_lanes_0__6[lane] = 0.0f;
                }
              }
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                float reduce_window_sum_7_pad_2__13;
                if (col + lane - 10 >= 0 && col + lane - 10 < 1000) {
                  const float reduce_window_sum_7_add_0__27 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 10]);
                  reduce_window_sum_7_pad_2__13 = reduce_window_sum_7_add_0__27;
                } else {
                  reduce_window_sum_7_pad_2__13 = 0.0f;
                }
                const float reduce_window_sum_7_add_0__28 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 8]);
                const float reduce_window_sum_7_add_2__13 = hlo_add(reduce_window_sum_7_pad_2__13, reduce_window_sum_7_add_0__28);
                const float reduce_window_sum_7_add_3__6 = hlo_add(reduce_window_sum_7_pad_3_lanes_0__6[lane], reduce_window_sum_7_add_2__13);
                reduce_window_sum_7_pad_4_lanes_0__3[lane] = reduce_window_sum_7_add_3__6;
              }
            } else {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                reduce_window_sum_7_pad_4_lanes_0__3[lane] = 0.0f;
              }
            }
            float reduce_window_sum_7_pad_3_lanes_0__7[4];
            if (col - 4 >= 0) {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                float reduce_window_sum_7_pad_2__14;
                if (col + lane - 6 >= 0 && col + lane - 6 < 1000) {
                  const float reduce_window_sum_7_add_0__29 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 6]);
                  reduce_window_sum_7_pad_2__14 = reduce_window_sum_7_add_0__29;
                } else {
                  reduce_window_sum_7_pad_2__14 = 0.0f;
                }
                const float reduce_window_sum_7_add_0__30 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 4]);
                const float reduce_window_sum_7_add_2__14 = hlo_add(reduce_window_sum_7_pad_2__14, reduce_window_sum_7_add_0__30);
                reduce_window_sum_7_pad_3_lanes_0__7[lane] = reduce_window_sum_7_add_2__14;
              }
            } else {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                reduce_window_sum_7_pad_3_lanes_0__7[lane] = 0.0f;
              }
            }
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              float reduce_window_sum_7_pad_2__15;
              if (col + lane - 2 >= 0 && col + lane - 2 < 1000) {
                const float reduce_window_sum_7_add_0__31 = load_as<float>(reduce_window_sum_7_add_shared_0[col + lane + to * 1000 - 2]);
                reduce_window_sum_7_pad_2__15 = reduce_window_sum_7_add_0__31;
              } else {
                reduce_window_sum_7_pad_2__15 = 0.0f;
              }
              const float reduce_window_sum_7_add_0__32 = reduce_window_sum_7_add_kept_0[k * 4 + l * 4 + lane];
              const float reduce_window_sum_7_add_2__15 = hlo_add(reduce_window_sum_7_pad_2__15, reduce_window_sum_7_add_0__32);
              const float reduce_window_sum_7_add_3__7 = hlo_add(reduce_window_sum_7_pad_3_lanes_0__7[lane], reduce_window_sum_7_add_2__15);
              const float reduce_window_sum_7_add_4__3 = hlo_add(reduce_window_sum_7_pad_4_lanes_0__3[lane], reduce_window_sum_7_add_3__7);
              const float reduce_window_sum_7_add_5__1 = hlo_add(reduce_window_sum_7_pad_5_lanes_0__1[lane], reduce_window_sum_7_add_4__3);
              const float reduce_window_sum_7_add_6 = hlo_add(reduce_window_sum_7_pad_6_lanes_0[lane], reduce_window_sum_7_add_5__1);
              reduce_window_sum_7_add_6_kept_0[k * 4 + l * 4 + lane] = reduce_window_sum_7_add_6;
              reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000] = store_as<float>(reduce_window_sum_7_add_6);
            }
          }
        }
      }
      __syncthreads();  // Regional: %reduce_window_sum.7.add.6 is read by other threads of the block
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 1000) {
            float reduce_window_sum_7_pad_10_lanes_0[4];
            if (col - 512 >= 0) {
              float reduce_window_sum_7_pad_9_lanes_0[4];
              if (col - 768 >= 0) {
                float reduce_window_sum_7_pad_8_lanes_0[4];
                if (col - 896 >= 0) {
                  float reduce_window_sum_7_pad_7_lanes_0[4];
                  if (col - 960 >= 0) {
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float reduce_window_sum_7_add_6__1 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 960]);
                      reduce_window_sum_7_pad_7_lanes_0[lane] = reduce_window_sum_7_add_6__1;
                    }
                  } else {
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      reduce_window_sum_7_pad_7_lanes_0[lane] = 0.0f;
                    }
                  }
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    const float reduce_window_sum_7_add_6__2 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 896]);
                    const float reduce_window_sum_7_add_7 = hlo_add(reduce_window_sum_7_pad_7_lanes_0[lane], reduce_window_sum_7_add_6__2);
                    reduce_window_sum_7_pad_8_lanes_0[lane] = reduce_window_sum_7_add_7;
                  }
                } else {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    reduce_window_sum_7_pad_8_lanes_0[lane] = 0.0f;
                  }
                }
                float reduce_window_sum_7_pad_7_lanes_0__1[4];
                if (col - 832 >= 0) {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    const float reduce_window_sum_7_add_6__3 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 832]);
                    reduce_window_sum_7_pad_7_lanes_0__1[lane] = reduce_window_sum_7_add_6__3;
                  }
                } else {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    reduce_window_sum_7_pad_7_lanes_0__1[lane] = 0.0f;
                  }
                }
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float reduce_window_sum_7_add_6__4 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 768]);
                  const float reduce_window_sum_7_add_7__1 = hlo_add(reduce_window_sum_7_pad_7_lanes_0__1[lane], reduce_window_sum_7_add_6__4);
                  const float reduce_window_sum_7_add_8 = hlo_add(reduce_window_sum_7_pad_8_lanes_0[lane], reduce_window_sum_7_add_7__1);
                  reduce_window_sum_7_pad_9_lanes_0[lane] = reduce_window_sum_7_add_8;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_9_lanes_0[lane] = 0.0f;
                }
              }
              float reduce_window_sum_7_pad_8_lanes_0__1[4];
              if (col - 640 >= 0) {
                float reduce_window_sum_7_pad_7_lanes_0__2[4];
                if (col - 704 >= 0) {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    const float reduce_window_sum_7_add_6__5 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 704]);
                    reduce_window_sum_7_pad_7_lanes_0__2[lane] = reduce_window_sum_7_add_6__5;
                  }
                } else {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    reduce_window_sum_7_pad_7_lanes_0__2[lane] = 0.0f;
                  }
                }
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float reduce_window_sum_7_add_6__6 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 640]);
                  const float reduce_window_sum_7_add_7__2 = hlo_add(reduce_window_sum_7_pad_7_lanes_0__2[lane], reduce_window_sum_7_add_6__6);
                  reduce_window_sum_7_pad_8_lanes_0__1[lane] = reduce_window_sum_7_add_7__2;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_8_lanes_0__1[lane] = 0.0f;
                }
              }
              float reduce_window_sum_7_pad_7_lanes_0__3[4];
              if (col - 576 >= 0) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float reduce_window_sum_7_add_6__7 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 576]);
                  reduce_window_sum_7_pad_7_lanes_0__3[lane] = reduce_window_sum_7_add_6__7;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_7_lanes_0__3[lane] = 0.0f;
                }
              }
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float reduce_window_sum_7_add_6__8 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 512]);
                const float reduce_window_sum_7_add_7__3 = hlo_add(reduce_window_sum_7_pad_7_lanes_0__3[lane], reduce_window_sum_7_add_6__8);
                const float reduce_window_sum_7_add_8__1 = hlo_add(reduce_window_sum_7_pad_8_lanes_0__1[lane], reduce_window_sum_7_add_7__3);
                const float reduce_window_sum_7_add_9 = hlo_add(reduce_window_sum_7_pad_9_lanes_0[lane], reduce_window_sum_7_add_8__1);
                reduce_window_sum_7_pad_10_lanes_0[lane] = reduce_window_sum_7_add_9;
              }
            } else {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                reduce_window_sum_7_pad_10_lanes_0[lane] = 0.0f;
              }
            }
            float reduce_window_sum_7_pad_9_lanes_0__1[4];
            if (col - 256 >= 0) {
              float reduce_window_sum_7_pad_8_lanes_0__2[4];
              if (col - 384 >= 0) {
                float reduce_window_sum_7_pad_7_lanes_0__4[4];
                if (col - 448 >= 0) {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    const float reduce_window_sum_7_add_6__9 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 448]);
                    reduce_window_sum_7_pad_7_lanes_0__4[lane] = reduce_window_sum_7_add_6__9;
                  }
                } else {
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    reduce_window_sum_7_pad_7_lanes_0__4[lane] = 0.0f;
                  }
                }
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float reduce_window_sum_7_add_6__10 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 384]);
                  const float reduce_window_sum_7_add_7__4 = hlo_add(reduce_window_sum_7_pad_7_lanes_0__4[lane], reduce_window_sum_7_add_6__10);
                  reduce_window_sum_7_pad_8_lanes_0__2[lane] = reduce_window_sum_7_add_7__4;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_8_lanes_0__2[lane] = 0.0f;
                }
              }
              float reduce_window_sum_7_pad_7_lanes_0__5[4];
              if (col - 320 >= 0) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float reduce_window_sum_7_add_6__11 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 320]);
                  reduce_window_sum_7_pad_7_lanes_0__5[lane] = reduce_window_sum_7_add_6__11;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_7_lanes_0__5[lane] = 0.0f;
                }
              }
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float reduce_window_sum_7_add_6__12 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 256]);
                const float reduce_window_sum_7_add_7__5 = hlo_add(reduce_window_sum_7_pad_7_lanes_0__5[lane], reduce_window_sum_7_add_6__12);
                const float reduce_window_sum_7_add_8__2 = hlo_add(reduce_window_sum_7_pad_8_lanes_0__2[lane], reduce_window_sum_7_add_7__5);
                reduce_window_sum_7_pad_9_lanes_0__1[lane] = reduce_window_sum_7_add_8__2;
              }
            } else {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                reduce_window_sum_7_pad_9_lanes_0__1[lane] = 0.0f;
              }
            }
            float reduce_window_sum_7_pad_8_lanes_0__3[4];
            if (col - 128 >= 0) {
              float reduce_window_sum_7_pad_7_lanes_0__6[4];
              if (col - 192 >= 0) {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float reduce_window_sum_7_add_6__13 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 192]);
                  reduce_window_sum_7_pad_7_lanes_0__6[lane] = reduce_window_sum_7_add_6__13;
                }
              } else {
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  reduce_window_sum_7_pad_7_lanes_0__6[lane] = 0.0f;
                }
              }
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float reduce_window_sum_7_add_6__14 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 128]);
                const float reduce_window_sum_7_add_7__6 = hlo_add(reduce_window_sum_7_pad_7_lanes_0__6[lane], reduce_window_sum_7_add_6__14);
                reduce_window_sum_7_pad_8_lanes_0__3[lane] = reduce_window_sum_7_add_7__6;
              }
            } else {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                reduce_window_sum_7_pad_8_lanes_0__3[lane] = 0.0f;
              }
            }
            float reduce_window_sum_7_pad_7_lanes_0__7[4];
            if (col - 64 >= 0) {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                const float reduce_window_sum_7_add_6__15 = load_as<float>(reduce_window_sum_7_add_6_shared_0[col + lane + to * 1000 - 64]);
                reduce_window_sum_7_pad_7_lanes_0__7[lane] = reduce_window_sum_7_add_6__15;
              }
            } else {
              #pragma unroll
              for (int lane = 0; lane < 4; ++lane) {
                reduce_window_sum_7_pad_7_lanes_0__7[lane] = 0.0f;
              }
            }
            const int at_0__2 = outer * 1000 + col;
            Vec<float, 4> reduce_window_sum_7_add_10_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float reduce_window_sum_7_add_6__16 = reduce_window_sum_7_add_6_kept_0[k * 4 + l * 4 + lane];
              const float reduce_window_sum_7_add_7__7 = hlo_add(reduce_window_sum_7_pad_7_lanes_0__7[lane], reduce_window_sum_7_add_6__16);
              const float reduce_window_sum_7_add_8__3 = hlo_add(reduce_window_sum_7_pad_8_lanes_0__3[lane], reduce_window_sum_7_add_7__7);
              const float reduce_window_sum_7_add_9__1 = hlo_add(reduce_window_sum_7_pad_9_lanes_0__1[lane], reduce_window_sum_7_add_8__3);
              const float reduce_window_sum_7_add_10 = hlo_add(reduce_window_sum_7_pad_10_lanes_0[lane], reduce_window_sum_7_add_9__1);
              reduce_window_sum_7_add_10_w_0.v[lane] = store_as<float>(reduce_window_sum_7_add_10);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_reduce_window_sum_7_add_10 + (at_0__2)) = reduce_window_sum_7_add_10_w_0;
          }
        }
      }
    }
  }
}
