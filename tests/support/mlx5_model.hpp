// A test's access to the model of an mlx5 HCA (tests/mlx5_model). The model's library must be loaded before this
// program starts.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "mlx5_model/control.h"

namespace pollcore::test {

class Mlx5Model {
public:
    static bool is_there() { return ::dlsym(RTLD_DEFAULT, "mlx5_model_step") != nullptr; }

    /// The queue pair carries out at most `most` posted sends. Returns how many sends ended. For the pace "hand" only.
    static int serve(std::uint32_t qpn, int most) {
        // The symbol is looked up only once, because benchmarks call this function often.
        static auto* const serve = call<decltype(mlx5_model_serve)>("mlx5_model_serve");
        return serve(qpn, most);
    }
    static void set_pace(const char* pace) { call<decltype(mlx5_model_set_pace)>("mlx5_model_set_pace")(pace); }
    static void watch(bool on) { call<decltype(mlx5_model_watch)>("mlx5_model_watch")(on ? 1 : 0); }
    static std::vector<mlx5_model_wqe> watched() {
        std::vector<mlx5_model_wqe> all;
        mlx5_model_wqe wqe{};
        while (call<decltype(mlx5_model_watched)>("mlx5_model_watched")(&wqe, 1) == 1) {
            all.push_back(wqe);
        }
        return all;
    }
    static void set_port(const char* device, bool up) {
        call<decltype(mlx5_model_set_port)>("mlx5_model_set_port")(device, up ? 1 : 0);
    }
    static void remove(const char* device) { call<decltype(mlx5_model_remove)>("mlx5_model_remove")(device); }
    static void overrun_cq(std::uint32_t cqn, int times = 1) {
        call<decltype(mlx5_model_overrun_cq)>("mlx5_model_overrun_cq")(cqn, times);
    }
    static std::uint32_t cq_of(std::uint32_t qpn, bool of_sends) {
        return call<decltype(mlx5_model_cq_of)>("mlx5_model_cq_of")(qpn, of_sends ? 1 : 0);
    }
    static void on_the_wire(std::uint32_t requests_lost, std::uint32_t answers_lost, std::uint32_t requests_repeated,
                            std::uint64_t seed) {
        call<decltype(mlx5_model_on_the_wire)>("mlx5_model_on_the_wire")(requests_lost, answers_lost, requests_repeated,
                                                                         seed);
    }
    static void lose_requests(std::uint32_t qpn, std::uint32_t count) {
        call<decltype(mlx5_model_lose_requests)>("mlx5_model_lose_requests")(qpn, count);
    }
    static void lose_answers(std::uint32_t qpn, std::uint32_t count) {
        call<decltype(mlx5_model_lose_answers)>("mlx5_model_lose_answers")(qpn, count);
    }
    static void repeat_requests(std::uint32_t qpn, std::uint32_t count) {
        call<decltype(mlx5_model_repeat_requests)>("mlx5_model_repeat_requests")(qpn, count);
    }
    static void fail_send(std::uint32_t qpn, std::uint32_t after, std::uint8_t syndrome, std::uint8_t vendor_syndrome) {
        call<decltype(mlx5_model_fail_send)>("mlx5_model_fail_send")(qpn, after, syndrome, vendor_syndrome);
    }
    static void fail_receive(std::uint32_t qpn, std::uint32_t after, std::uint8_t syndrome,
                             std::uint8_t vendor_syndrome) {
        call<decltype(mlx5_model_fail_receive)>("mlx5_model_fail_receive")(qpn, after, syndrome, vendor_syndrome);
    }

private:
    template <class Function>
    static Function* call(const char* name) {
        void* found = ::dlsym(RTLD_DEFAULT, name);
        if (found == nullptr) {
            throw std::logic_error(std::string(name) + ": the model of an mlx5 HCA was not loaded before this program");
        }
        return reinterpret_cast<Function*>(found);
    }
};

}  // namespace pollcore::test
