// What the statistics segment says of queue pairs, devices and sessions, beside what the test has submitted.
#include <string>
#include <string_view>

#include "fixture.hpp"
#include "pollcore/statistics.hpp"

namespace pollcore::testing {
namespace {

using statistics::ReadRow;
using statistics::ReadTable;
using statistics::Snapshot;

Config with_segment(Config config = test_config()) {
    config.statistics.segment = StatisticsConfig::Segment::on;
    return config;
}

class Figures : public Conformance {
protected:
    explicit Figures(const Config& config = with_segment()) : Conformance(config) {}

    /// What the statistics say of all that happened before this call.
    [[nodiscard]] Snapshot now() {
        (void)runtime.open_session();  // the worker counts after it has delivered, and before it answers this call
        Snapshot first = runtime.statistics();
        if (attached_tests()) {
            return first;  // it was made for this call
        }
        const std::uint64_t seen = first.header.updates;
        Snapshot later = std::move(first);
        until([&] { return (later = runtime.statistics()).header.updates >= seen + 2; });
        return later;
    }
    [[nodiscard]] static std::uint64_t value(const ReadTable& table, const ReadRow& row, std::string_view field) {
        const auto at = table.field(field);
        return at && row.words[*at].size() == 1 ? row.words[*at][0] : ~std::uint64_t{0};
    }
    /// The value of the row whose `key` is `wanted`.
    [[nodiscard]] static std::uint64_t value(const Snapshot& from, std::string_view table, std::string_view key,
                                             std::uint64_t wanted, std::string_view field) {
        const ReadTable* const rows = from.table(table);
        if (rows != nullptr) {
            for (const ReadRow& row : rows->rows) {
                if (value(*rows, row, key) == wanted) {
                    return value(*rows, row, field);
                }
            }
        }
        ADD_FAILURE() << "no " << table << " has the " << key << " " << wanted;
        return ~std::uint64_t{0};
    }
    [[nodiscard]] static std::uint64_t of_qp(const Snapshot& from, const QueuePair& qp, std::string_view field) {
        return value(from, "queue_pair", "qp_num", qp.qp_num(), field);
    }
    [[nodiscard]] static std::uint64_t of_device(const Snapshot& from, std::string_view field) {
        return value(from, "device", "device", 1, field);
    }
    [[nodiscard]] std::uint64_t of_session(const Snapshot& from, std::string_view field) const {
        return value(from, "session", "session", session.id(), field);
    }
};

/// The rows of devices are not those of an attached process.
using FiguresInThisProcess = Figures;

TEST_F(Figures, QueuePairsCountRequestsAndBytesByTheShortAndTheGeneralWay) {
    connect_pair();
    for (std::uint64_t tag = 1; tag <= 3; ++tag) {
        submit(recv(tag, 1000));
        submit(send(tag, 100));
    }
    (void)await(6);
    submit(rdma(Opcode::rdma_write, 4, 5000));
    submit(rdma(Opcode::rdma_read, 5, 300));
    const Sge sges[] = {local_sge(10), local_sge(20, 64), local_sge(30, 128)};
    WorkRequest several = rdma(Opcode::rdma_write, 6, 10);
    ASSERT_EQ(session.try_submit(several, sges), Refusal::none);
    (void)await(3);
    const Snapshot seen = now();
    EXPECT_EQ(of_qp(seen, a, "sends"), 6u);
    EXPECT_EQ(of_qp(seen, a, "send_bytes"), 3 * 100 + 5000 + 300 + 60u);
    EXPECT_EQ(of_qp(seen, a, "receives"), 0u);
    EXPECT_EQ(of_qp(seen, b, "sends"), 0u);
    EXPECT_EQ(of_qp(seen, b, "receives"), 3u);
    EXPECT_EQ(of_qp(seen, b, "receive_bytes"), 300u);
    EXPECT_EQ(of_qp(seen, a, "errors"), 0u);
    EXPECT_EQ(of_session(seen, "accepted"), 9u);
    EXPECT_EQ(of_session(seen, "completed"), 9u);
}

TEST_F(FiguresInThisProcess, TheDeviceHasTheSumsOfItsQueuePairs) {
    connect_pair();
    submit(recv(1, 1000));
    submit(send(1, 100));
    submit(rdma(Opcode::rdma_write, 2, 5000));
    (void)await(3);
    const Snapshot seen = now();
    EXPECT_EQ(of_device(seen, "sends"), 2u);
    EXPECT_EQ(of_device(seen, "send_bytes"), 5100u);
    EXPECT_EQ(of_device(seen, "receives"), 1u);
    EXPECT_EQ(of_device(seen, "receive_bytes"), 100u);
}

TEST_F(FiguresInThisProcess, AnErrorIsCountedByItsStatusAndStaysInTheSumOfTheDevice) {
    connect_pair();
    WorkRequest wrong = rdma(Opcode::rdma_write, 1, 8);
    wrong.rkey ^= 0x5a5a5a00;
    submit(wrong);
    EXPECT_EQ(await_one().status, Status::rem_access_err);
    EXPECT_EQ(of_qp(now(), a, "rem_access_err"), 1u);
    a.close();
    b.close();
    const Snapshot seen = now();
    EXPECT_EQ(of_device(seen, "rem_access_err"), 1u);
    EXPECT_EQ(of_device(seen, "sends"), 1u);
    EXPECT_EQ(seen.table("queue_pair")->rows.size(), 0u);
}

TEST_F(Figures, ReceivesOfASharedReceiveQueueAreCountedAtTheirQueuePair) {
    SharedReceiveQueue srq = runtime.create_shared_receive_queue({.session = &session, .depth = 16});
    QueuePairOptions takes = shape();
    takes.srq = &srq;
    a = runtime.create_queue_pair(shape());
    b = runtime.create_queue_pair(takes);
    const QpInfo info_a = a.info();
    a.connect(b.info());
    b.connect(info_a);
    for (std::uint64_t tag = 1; tag <= 4; ++tag) {
        submit(WorkRequest{
            .tag = tag, .sge = remote_sge(512), .srq = srq.handle(), .opcode = Opcode::srq_recv, .num_sge = 1});
        submit(send(tag, 50));
    }
    (void)await(8);
    const Snapshot seen = now();
    EXPECT_EQ(of_qp(seen, b, "receives"), 4u);
    EXPECT_EQ(of_qp(seen, b, "receive_bytes"), 200u);
}

class FiguresOfWriteRings : public Figures {
protected:
    FiguresOfWriteRings()
        : Figures(with_segment(config_for_rings())), reader(runtime.open_session({.pool_buffers = 64})) {}

    Session reader;
};

TEST_F(FiguresOfWriteRings, MessagesOfAWriteRingAreCountedAtTheQueuePairThatTheyReach) {
    ReceivePool ring = runtime.create_write_ring({.session = &reader, .bytes = 8192, .messages = 32});
    QueuePairOptions takes = shape(FlowControl::ring);
    takes.shares[0].session = &reader;
    takes.pool = &ring;
    a = runtime.create_queue_pair(shape(FlowControl::ring));
    b = runtime.create_queue_pair(takes);
    const QpInfo info_a = a.info();
    a.connect(b.info());
    b.connect(info_a);
    for (std::uint64_t tag = 1; tag <= 5; ++tag) {
        submit(send(tag, 70));
    }
    (void)await(5);
    (void)await(reader, 5);
    const Snapshot seen = now();
    EXPECT_EQ(of_qp(seen, b, "receives"), 5u);
    EXPECT_EQ(of_qp(seen, b, "receive_bytes"), 5 * 70u);
    EXPECT_EQ(of_qp(seen, a, "receives"), 0u);
}

TEST_F(Figures, RefusalsAreCountedByCause) {
    connect_pair();
    WorkRequest bad = send(1, 8);
    bad.opcode = static_cast<Opcode>(0xee);
    EXPECT_EQ(session.try_submit(bad), Refusal::bad_opcode);
    EXPECT_EQ(session.try_submit(bad), Refusal::bad_opcode);
    WorkRequest stale = send(2, 8);
    stale.qp.generation ^= 0x100;
    EXPECT_EQ(session.try_submit(stale), Refusal::stale_handle);
    EXPECT_EQ(session.figures().refused, 3u);
    const Snapshot seen = now();
    EXPECT_EQ(of_session(seen, "refused_bad_opcode"), 2u);
    EXPECT_EQ(of_session(seen, "refused_stale_handle"), 1u);
    EXPECT_EQ(of_session(seen, "refused_by_worker"), 0u);
    EXPECT_EQ(of_session(seen, "accepted"), 0u);
}

}  // namespace
}  // namespace pollcore::testing
