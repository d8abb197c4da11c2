// A runtime on libmlx5 and on the model of the HCA. Tests make the model fail at chosen requests.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "fixture.hpp"
#include "mlx5_model.hpp"

namespace pollcore::testing {

inline Config mlx5_config() {
    if (!test::Mlx5Model::is_there() || TestDevice::get().verbs_name != "mlx5_0" || attached_tests()) {
        std::fprintf(stderr,
                     "These tests need the model of an mlx5 HCA in this process, by LD_PRELOAD, and "
                     "POLLCORE_TEST_DEVICE=verbs:mlx5_0.\n");
        std::exit(2);
    }
    return test_config();
}

/// Tests on device mlx5_0, which is never removed.
class OnMlx5 : public Conformance {
protected:
    using Model = test::Mlx5Model;

    static constexpr std::uint8_t kVendor = 0x5a;  // the vendor error of the faults that tests plan

    explicit OnMlx5(const Config& config = mlx5_config()) : Conformance(config) { Exercised::get().ignore(); }

    static WorkRequest on(const QueuePair& qp, WorkRequest request) {
        request.qp = qp.handle();
        return request;
    }
    [[nodiscard]] QueuePairOptions shape_of(QpType type) {
        QueuePairOptions options = shape();
        options.type = type;
        options.qkey = type == QpType::ud ? kQkey : 0;
        return options;
    }
    /// Connects a with b, and c with d. Tests plan faults only for a and b.
    void connect_two_pairs(const QueuePairOptions& options, const PathAttributes& path = {}) {
        end_pairs();
        connect_pair(options, path);
        c = std::move(a);
        d = std::move(b);
        connect_pair(options, path);
    }
    /// Replaces a and b by a new pair.
    void reconnect(const QueuePairOptions& options, const PathAttributes& path = {}) {
        a.close();
        b.close();
        connect_pair(options, path);
    }
    void end_pairs() {
        for (QueuePair* qp : {&a, &b, &c, &d}) {
            qp->close();
        }
    }
    /// Sends one message over a reliable or unreliable connection.
    void expect_message(const QueuePair& from, const QueuePair& to) {
        submit(on(to, recv(900, 64)));
        submit(on(from, send(901, 32)));
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success) << completion.tag;
            EXPECT_GE(completion.tag, 900u);
        }
    }
    void expect_new_pairs_work() {
        a.close();
        b.close();
        connect_pair();
        expect_message(a, b);
    }
    [[nodiscard]] std::uint64_t told(EventType type) {
        return runtime.control_counters().async_events_by_type[static_cast<std::size_t>(type)].value();
    }
    void expect_everything_accounted() {
        until([&] { return session.figures().in_flight() == 0; });
        const SessionFigures figures = session.figures();
        EXPECT_EQ(figures.accepted, figures.completed + figures.retired);
        Completion more;
        EXPECT_EQ(session.poll({&more, 1}), 0u) << more.tag << " came twice";
    }

    static constexpr std::uint32_t kQkey = 0x11223344;
    QueuePair c;
    QueuePair d;
};

}  // namespace pollcore::testing
