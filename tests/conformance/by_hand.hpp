// Queue pairs that a test drives by hand, with attributes that it chooses.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "fixture.hpp"

namespace pollcore::testing {

class ByHandFixture : public Conformance {
protected:
    using Conformance::Conformance;

    [[nodiscard]] QueuePairOptions by_hand(Session& poster, QpType type = QpType::rc) {
        QueuePairOptions options;
        options.type = type;
        options.shares = {{.session = &poster, .send_depth = 16}};
        options.recv_depth = 16;
        options.by_hand = true;
        return options;
    }
    void make_pair(QpType type = QpType::rc) {
        a = runtime.create_queue_pair(by_hand(session, type));
        b = runtime.create_queue_pair(by_hand(session, type));
    }
    /// The entry of the GID table that info() names.
    [[nodiscard]] GidAttributes own_gid() {
        const std::array<std::uint8_t, 16> wanted = a.info().gid;
        for (const GidAttributes& entry : runtime.gids()) {
            if (entry.gid == wanted && entry.gid_type == GidType::roce_v2) {
                return entry;
            }
        }
        ADD_FAILURE() << "the GID table does not have the queue pair's GID";
        return {};
    }
    [[nodiscard]] static QpAttributes init() {
        return {.qp_state = VerbsQpState::init,
                .remote_access = RemoteAccess::all(),
                .pkey_index = std::uint16_t{0},
                .port_num = std::uint8_t{1}};
    }
    [[nodiscard]] QpAttributes rtr(std::uint32_t dest_qp_num, std::uint32_t rq_psn, QpType type = QpType::rc) {
        const GidAttributes gid = own_gid();
        QpAttributes to{
            .qp_state = VerbsQpState::rtr,
            .ah_attr = AddressAttributes{.dgid = gid.gid, .sgid_index = static_cast<std::uint8_t>(gid.gid_index)},
            .path_mtu = std::uint16_t{1024},
            .rq_psn = rq_psn,
            .dest_qp_num = dest_qp_num};
        if (type == QpType::rc) {
            to.max_dest_rd_atomic = std::uint8_t{4};
            to.min_rnr_timer = std::uint8_t{12};
        }
        return to;
    }
    [[nodiscard]] static QpAttributes rts(std::uint32_t sq_psn, QpType type = QpType::rc) {
        QpAttributes to{.qp_state = VerbsQpState::rts, .sq_psn = sq_psn};
        if (type == QpType::rc) {
            to.timeout = std::uint8_t{14};
            to.retry_cnt = to.rnr_retry = std::uint8_t{7};
            to.max_rd_atomic = std::uint8_t{4};
        }
        return to;
    }
    void connect(QpType type = QpType::rc) {
        for (QueuePair* qp : {&a, &b}) {
            QpAttributes to = init();
            if (type != QpType::rc) {
                to.remote_access = RemoteAccess{.write = true};
            }
            qp->modify(to);
        }
        a.modify(rtr(b.qp_num(), kPsnOfB, type));
        b.modify(rtr(a.qp_num(), kPsnOfA, type));
        a.modify(rts(kPsnOfA, type));
        b.modify(rts(kPsnOfB, type));
    }
    void expect_message(std::uint64_t tag) {
        submit(recv(tag, 64));
        submit(send(tag + 1, 64));
        for (const Completion& completion : await(2)) {
            EXPECT_EQ(completion.status, Status::success);
        }
        EXPECT_EQ(std::memcmp(local.data(), remote.data(), 64), 0);
    }
    static void expect_error(int code, const std::function<void()>& call) {
        try {
            call();
            ADD_FAILURE() << "an error " << code << " was expected";
        } catch (const Error& error) {
            EXPECT_EQ(error.code().value(), code) << error.what();
        }
    }

    static constexpr std::uint32_t kKey = 0x11223344;
    static constexpr std::uint32_t kPsnOfA = 0x123456;
    static constexpr std::uint32_t kPsnOfB = 0xfffffe;  // wraps within a test
};

}  // namespace pollcore::testing
