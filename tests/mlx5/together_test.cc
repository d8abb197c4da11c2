// Causes errors, losses, repetitions and CQ overruns at random, and checks that each request ends exactly once.
#include <map>
#include <random>

#include "give_way.hpp"
#include "mlx5_fixture.hpp"

namespace pollcore::testing {
namespace {

class Together : public OnMlx5 {
protected:
    static constexpr PathAttributes kQuick{.timeout = 8, .retry_count = 2, .rnr_retry = 2, .min_rnr_timer = 1};

    ~Together() override { Model::on_the_wire(0, 0, 0, 1); }

    void plan(std::mt19937& random) {
        static constexpr std::uint8_t kSome[] = {MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR,
                                                 MLX5_CQE_SYNDROME_WR_FLUSH_ERR,
                                                 MLX5_CQE_SYNDROME_BAD_RESP_ERR,
                                                 MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR,
                                                 MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR,
                                                 0x7f};
        const std::uint32_t number = (random() % 2 == 0 ? a : b).qp_num();
        const std::uint8_t syndrome = kSome[random() % std::size(kSome)];
        const auto after = static_cast<std::uint32_t>(random() % 30);
        switch (random() % 4) {
            case 0: Model::fail_send(number, after, syndrome, kVendor); break;
            case 1: Model::fail_receive(number, after, syndrome, kVendor); break;
            case 2: Model::lose_requests(number, after % 4); break;
            default: Model::repeat_requests(number, after); break;
        }
    }
    /// Renews a and b after an error: resets them, or makes new ones if they were closed with their CQ.
    void renew() {
        try {
            a.reset();
            b.reset();
            const QpInfo info = a.info();
            a.connect(b.info(), kQuick);
            b.connect(info, kQuick);
        } catch (const Error&) {
            reconnect(shape(), kQuick);
        }
    }
    void take_completions() {
        Completion some[16];
        while (const std::size_t n = session.poll(some)) {
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(outstanding.erase(some[i].tag), 1u) << some[i].tag;
            }
        }
    }

    std::map<std::uint64_t, bool> outstanding;  // by tag: true if the request must complete
};

TEST_F(Together, LosesNoWork) {
    std::uint64_t renewed = 0;
    for (unsigned seed = 1; seed <= 20; ++seed) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        Model::on_the_wire(10, 10, 40, seed);
        reconnect(shape(), kQuick);
        const SessionFigures before = session.figures();
        outstanding.clear();
        for (std::uint64_t tag = 0; tag < 800; ++tag) {
            try {
                if (random() % 25 == 0) {
                    plan(random);
                }
                if (tag == 400 && seed % 3 == 0) {
                    Model::overrun_cq(Model::cq_of(a.qp_num(), seed % 2 == 0));
                }
            } catch (const Error&) {
                // The queue pair was closed with its CQ.
            }
            WorkRequest request =
                random() % 2 == 0 ? recv(tag, 256)
                                  : rdma(random() % 2 == 0 ? Opcode::send : Opcode::rdma_write, tag, random() % 200);
            request.qp = (random() % 2 == 0 ? a : b).handle();
            if (!is_recv(request.opcode) && random() % 2 == 0) {
                request.flags = 0;
            }
            const Refusal refusal = session.try_submit(request);
            if (refusal == Refusal::none) {
                outstanding[tag] = is_recv(request.opcode) || (request.flags & kSignaled) != 0;
            } else if (refusal == Refusal::qp_in_error || refusal == Refusal::stale_handle) {
                renew();
                ++renewed;
            }
            take_completions();
            test::give_way();
        }
        (void)a.close();
        (void)b.close();
        until([&] {
            take_completions();
            return session.figures().in_flight() == 0;
        });
        const SessionFigures after = session.figures();
        EXPECT_EQ(after.retired - before.retired, outstanding.size());
        for (const auto& [tag, must_complete] : outstanding) {
            EXPECT_FALSE(must_complete) << tag;
        }
        expect_acknowledged();
    }
    Model::on_the_wire(0, 0, 0, 1);
    expect_new_pairs_work();
    EXPECT_GT(renewed, 0u);
    EXPECT_EQ(runtime.control_counters().cut_short.value(), 0u);
}

}  // namespace
}  // namespace pollcore::testing
