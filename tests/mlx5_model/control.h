/* What a test or a benchmark does to the model beside the verbs. Queue pairs and completion queues are named by number:
   ibv_qp's qp_num, and for a CQ mlx5dv_init_obj()'s cqn; devices as ibv_devices(1) does. Every call takes the model's
   lock. A program that does not link the model finds these functions by dlsym(3). */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the NIC moves: "hand", "poll" or "thread". CQs that exist keep how their polls were hooked. */
void mlx5_model_set_pace(const char* pace);
/* Each queue pair carries out at most `most` sends. Returns how many ended. */
int mlx5_model_step(int most);
/* One queue pair's, and nothing else is touched. */
int mlx5_model_serve(uint32_t qpn, int most);

void mlx5_model_set_port(const char* device, int up);
void mlx5_model_remove(const char* device);
void mlx5_model_overrun_cq(uint32_t cqn);
/* The number of the CQ that a queue pair has for its sends, or its receives. */
uint32_t mlx5_model_cq_of(uint32_t qpn, int of_sends);

/* Of 1024 requests of reliable connections so many are lost, so many acknowledgements, and so many requests come twice.
 */
void mlx5_model_on_the_wire(uint32_t requests_lost, uint32_t answers_lost, uint32_t requests_repeated, uint64_t seed);
/* The next `count` requests of a queue pair. */
void mlx5_model_lose_requests(uint32_t qpn, uint32_t count);
void mlx5_model_lose_answers(uint32_t qpn, uint32_t count);
void mlx5_model_repeat_requests(uint32_t qpn, uint32_t count);
/* What follows the next `after` sends, or receives, of a queue pair ends with this syndrome: MLX5_CQE_SYNDROME_... */
void mlx5_model_fail_send(uint32_t qpn, uint32_t after, uint8_t syndrome, uint8_t vendor_syndrome);
void mlx5_model_fail_receive(uint32_t qpn, uint32_t after, uint8_t syndrome, uint8_t vendor_syndrome);

/* A send WQE that was carried out, or flushed. */
struct mlx5_model_wqe {
    uint32_t qpn;
    uint16_t index; /* of its first block of 64 bytes */
    uint8_t opcode; /* MLX5_OPCODE_... */
    uint8_t signaled;
    uint64_t remote_address;
    uint32_t rkey;
    uint32_t segments; /* of data, by pointer */
    uint64_t address;  /* of the first of them */
    uint32_t lkey;
    uint32_t length; /* of the message */
};
/* From now on WQEs are written down, or not. */
void mlx5_model_watch(int on);
/* The oldest that were written down, at most `most`; returns how many. */
int mlx5_model_watched(struct mlx5_model_wqe* wqes, int most);

/* Of a queue pair: changes of its doorbell record; how many of these had their doorbell in the UAR; how many of these
 * the whole WQE. */
void mlx5_model_doorbells(uint32_t qpn, uint64_t* records, uint64_t* rung, uint64_t* blueflame);

#ifdef __cplusplus
}
#endif
