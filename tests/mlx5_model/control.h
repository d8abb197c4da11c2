/* How a test or a benchmark controls the model, beside the verbs. A queue pair is named by its qp_num, a CQ by the cqn
   of mlx5dv_init_obj(), a device as in ibv_devices(1). Every call takes the model's lock. A program that does not link
   the model finds these functions by dlsym(3). */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets what runs the NIC: "hand", "poll" or "thread". "poll" has no effect on a CQ if all CQs of its context were made
   at the pace "hand", and none on ibv_start_poll() of a CQ that was made at this pace. */
void mlx5_model_set_pace(const char* pace);
/* Each queue pair carries out at most `most` sends. Then armed CQs report events. Returns how many sends ended. */
int mlx5_model_step(int most);
/* Carries out at most `most` sends of one queue pair. No CQ reports an event. Returns how many sends ended. */
int mlx5_model_serve(uint32_t qpn, int most);

void mlx5_model_set_port(const char* device, int up);
void mlx5_model_remove(const char* device);
void mlx5_model_overrun_cq(uint32_t cqn, int times);
/* The number of the CQ of a queue pair's sends, or of its receives. */
uint32_t mlx5_model_cq_of(uint32_t qpn, int of_sends);

/* Random faults: how many of 1024 requests of reliable connections are lost, lose their answer, or arrive twice. */
void mlx5_model_on_the_wire(uint32_t requests_lost, uint32_t answers_lost, uint32_t requests_repeated, uint64_t seed);
/* The next `count` requests of a queue pair are lost, lose their answers, or arrive twice. */
void mlx5_model_lose_requests(uint32_t qpn, uint32_t count);
void mlx5_model_lose_answers(uint32_t qpn, uint32_t count);
void mlx5_model_repeat_requests(uint32_t qpn, uint32_t count);
/* Lets `after` sends, or receives, of a queue pair go on as usual, and ends the one after them with this syndrome:
   MLX5_CQE_SYNDROME_... */
void mlx5_model_fail_send(uint32_t qpn, uint32_t after, uint8_t syndrome, uint8_t vendor_syndrome);
void mlx5_model_fail_receive(uint32_t qpn, uint32_t after, uint8_t syndrome, uint8_t vendor_syndrome);

/* A send WQE that was carried out, or flushed. */
struct mlx5_model_wqe {
    uint32_t qpn;
    uint16_t index; /* index of its first 64-byte block */
    uint8_t opcode; /* MLX5_OPCODE_... */
    uint8_t signaled;
    uint64_t remote_address;
    uint32_t rkey;
    uint32_t segments; /* number of data segments, without inline data */
    uint64_t address;  /* address in the first segment */
    uint32_t lkey;
    uint32_t length; /* bytes of the message */
};
/* Turns the recording of WQEs on or off; drops earlier records. */
void mlx5_model_watch(int on);
/* Takes the oldest recorded WQEs, at most `most`; returns how many. */
int mlx5_model_watched(struct mlx5_model_wqe* wqes, int most);

/* Counts the changes of a queue pair's doorbell record. Of these changes, `rung` also rang in the UAR, and `blueflame`
   put the whole WQE into the UAR. */
void mlx5_model_doorbells(uint32_t qpn, uint64_t* records, uint64_t* rung, uint64_t* blueflame);

#ifdef __cplusplus
}
#endif
